"""Both kinds: Django's tasks, which know nothing of pyworker, and pyworker's, with all that it can do."""

from pyworker import task as pyworker_task
from shop.models import Order

try:
    from django.tasks import task
except ImportError:  # Django 5.2: pip install django-tasks
    from django_tasks import task


@task(queue_name="mail")
def send_receipt(order_id):
    order = Order.objects.get(pk=order_id)
    print("receipt to", order.email)
    return {"sent to": order.email}


@task(takes_context=True)
async def remind(context, order_id):
    order = await Order.objects.aget(pk=order_id)
    return f"attempt {context.attempt} to remind {order.email}"


@pyworker_task(max_attempts=10)
def charge(payload, job):
    with job.transaction() as conn:  # these writes and the job's completion are one commit
        conn.execute("update shop_order set charged = true where id = %s", [payload["order"]])
