"""What others see of a running beat: health, metrics, traces, check-ins and calls to other services.

Nothing here keeps beat from sending, whatever it raises, and however slow the other side is.

Never: decides what is sent, or when.
"""
