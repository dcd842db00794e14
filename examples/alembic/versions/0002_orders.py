"""orders, each with a job"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade():
    op.create_table("orders", sa.Column("id", sa.BigInteger, primary_key=True), sa.Column("email", sa.Text))
    op.execute("""
        create function charge_order() returns trigger language plpgsql as $$
        begin
            perform pyworker.add_job('charge', json_build_object('order', new.id));
            return new;
        end $$
    """)
    op.execute(
        "create trigger charge_order after insert on orders for each row execute function charge_order()"
    )


def downgrade():
    op.drop_table("orders")
    op.execute("drop function charge_order")
