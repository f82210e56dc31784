"""A mail when an entry was paused or can't be used. Import this module where your app is made.

MAIL_HOST and MAIL_PORT are those of your mail server; MAIL_TO gets the mails.
"""

import os
import smtplib
from email.message import EmailMessage

from redbeat.signals import entry_paused, entry_quarantined


@entry_paused.connect
def mail_pause(sender, entry, note, by, until, **kwargs):
    if by == "redbeat":  # it has failed too often; who pauses an entry himself needs no mail
        end = f"until {until:%Y-%m-%d %H:%M} UTC" if until else "until somebody resumes it"
        send(f"{entry} is paused", f"{entry} is {note}\n\nIt is paused {end}.")


@entry_quarantined.connect
def mail_quarantine(sender, entry, reason, **kwargs):
    send(f"{entry} can't be used", reason)


def send(subject, text):
    mail = EmailMessage()
    mail["From"] = os.environ.get("MAIL_FROM", "beat@localhost")
    mail["To"] = os.environ["MAIL_TO"]
    mail["Subject"] = subject
    mail.set_content(text)
    port = int(os.environ.get("MAIL_PORT", "25"))
    with smtplib.SMTP(os.environ.get("MAIL_HOST", "localhost"), port, timeout=10) as server:
        server.send_message(mail)
