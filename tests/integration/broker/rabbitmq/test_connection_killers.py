"""Entries whose messages RabbitMQ, or the way to it, answers by ending the connection."""
