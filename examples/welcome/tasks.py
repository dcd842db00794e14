"""The tasks. Run them with: pyworker run welcome.tasks

WELCOME_SMTP=host:port names the mail server; without it the mails are printed.
"""

import os
import smtplib
from email.message import EmailMessage
from typing import TypedDict

from pyworker import task


class NewUser(TypedDict):
    email: str
    name: str


class Change(TypedDict):
    email: str
    city: str | None


# A mail server that is busy is tried again after one second, ten seconds, then every minute.
PATIENCE = ["1 second", "10 seconds", "1 minute"]


@task(max_attempts=20, backoff=PATIENCE)
def send_welcome(user: NewUser) -> None:
    send(user["email"], "Welcome!", f"Hello {user['name']}, good to have you here.")


@task(max_attempts=20, backoff=PATIENCE)
def send_changes(changes: list[Change]) -> None:
    cities = ", then ".join(str(change["city"]) for change in changes)
    send(changes[0]["email"], "Your profile has changed", f"You moved to {cities}.")


def send(to: str, subject: str, text: str) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "welcome@example.org", to, subject
    mail.set_content(text)
    if server := os.environ.get("WELCOME_SMTP"):
        host, port = server.rsplit(":", 1)
        with smtplib.SMTP(host, int(port), timeout=10) as smtp:
            smtp.send_message(mail)
    else:
        print(f"--- mail to {to}: {subject}\n{text}")
