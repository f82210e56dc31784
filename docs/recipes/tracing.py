"""Spans of RedBeat's runs, and of what workers do for them; to be imported where the app is made."""

from celery.signals import beat_init, worker_process_init
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor


def send_spans(service: str) -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


@beat_init.connect
def trace_beat(**kwargs: object) -> None:
    send_spans("beat")


@worker_process_init.connect
def trace_worker(**kwargs: object) -> None:
    send_spans("worker")
    CeleryInstrumentor().instrument()
