"""Session in, job out, one transaction: FastAPI with SQLAlchemy's asyncio, and the same in a sync endpoint.

createdb shop && export PGDATABASE=shop && pyworker migrate
uvicorn app:app            # in this directory
pyworker run tasks
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from tasks import charge

from pyworker import add_job
from pyworker.ui import create_app

# Where the database is, the PG* variables say.
engine, async_engine = create_engine("postgresql+psycopg://"), create_async_engine("postgresql+asyncpg://")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    charged: Mapped[bool] = mapped_column(default=False)


class NewOrder(BaseModel):
    email: str


async def async_session() -> AsyncIterator[AsyncSession]:
    async with AsyncSession(async_engine) as session, session.begin():  # commits when the request went well
        yield session


def sync_session() -> Iterator[Session]:
    with Session(engine) as session, session.begin():
        yield session


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    Base.metadata.create_all(engine)
    yield
    await async_engine.dispose()
    engine.dispose()


app = FastAPI(lifespan=lifespan)


# scope="function": the transaction ends before the answer is sent, so whoever has the answer has the order.
@app.post("/orders")
async def place_order(
    new: NewOrder, session: Annotated[AsyncSession, Depends(async_session, scope="function")]
) -> dict[str, int]:
    order = Order(email=new.email)
    session.add(order)
    await session.flush()  # for its id
    job = await charge.add(session, {"order": order.id}, job_key=f"charge {order.id}")
    if "@" not in new.email:
        raise HTTPException(422, "no address")  # the order and its job are rolled back
    return {"order": order.id, "job": job.id}


@app.post("/orders/sync")
def place_order_sync(
    new: NewOrder, session: Annotated[Session, Depends(sync_session, scope="function")]
) -> dict[str, int]:
    order = Order(email=new.email)
    session.add(order)
    session.flush()
    job = add_job(session, "charge", {"order": order.id})  # by name: the tasks' code need not be here
    if "@" not in new.email:
        raise HTTPException(422, "no address")
    return {"order": order.id, "job": job.id}


# The dashboard, at /jobs/. Who comes in is this application's matter: here only who is on this machine.
app.mount("/jobs", create_app(hosts=["127.0.0.1", "localhost"]))
