from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pyworker", "0001_install")
    ]  # so that its functions can be called below, and by triggers

    operations = [
        migrations.CreateModel(
            "Order",
            [
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("email", models.EmailField(max_length=254)),
                ("charged", models.BooleanField(default=False)),
            ],
        ),
        # A queue that nobody has set runs one job at a time; Django's queues are labels, without a limit.
        migrations.RunSQL("SELECT pyworker.set_queue('mail', null)", migrations.RunSQL.noop),
    ]
