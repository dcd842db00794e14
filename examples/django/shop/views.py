from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.http import JsonResponse
from django.views.decorators.csrf import csrf_exempt

from pyworker import add_job
from shop.models import Order
from shop.tasks import remind, send_receipt


@csrf_exempt
def place_order(request):
    """The order and its jobs are one transaction.

    No transaction.on_commit is needed, and nothing is left of them after an error.
    """
    with transaction.atomic():
        order = Order.objects.create(email=request.POST["email"])
        add_job(connection, "charge", {"order": order.pk}, job_key=f"charge {order.pk}")
        receipt = send_receipt.enqueue(order.pk)
        if "fail" in request.POST:
            raise ValueError("asked to fail")
    return JsonResponse({"order": order.pk, "receipt": receipt.id})


@csrf_exempt
async def place_order_async(request):
    """Django's transactions are sync: what belongs together goes into one function."""
    order, reminder = await sync_to_async(_order_with_reminder)(request.POST["email"])
    receipt = await send_receipt.using(priority=50).aenqueue(order.pk)
    return JsonResponse({"order": order.pk, "receipt": receipt.id, "reminder": reminder.id})


@transaction.atomic
def _order_with_reminder(email):
    order = Order.objects.create(email=email)
    return order, remind.enqueue(order.pk)


def receipt_state(request, result_id):
    result = send_receipt.get_result(result_id)
    return JsonResponse(
        {"status": result.status, "result": result.return_value if result.is_finished else None}
    )
