"""Defines the flow `notify`, with which automations report an event of a run to a person."""

from __future__ import annotations

from typing import Any

from prefect import flow, get_run_logger
from prefect.blocks.core import Block
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed


@flow(name="notify", flow_run_name="{title}", retries=0, validate_parameters=True, persist_result=False)
def notify(title: str, text: str, *, block: str | None = None) -> State[Any]:
    """Show the text as the state of this flow run. If `block` is given, also send the text with this block.
    `block` is the slug of a Prefect block, such as slack-webhook/segue.
    """
    get_run_logger().warning("%s: %s", title, text)
    if block is not None:
        try:
            found: Any = Block.load(block)
        except ValueError:
            return Failed(
                message=f"There is no block {block!r} on this Prefect server. The message was: {title}: {text}"
            )
        found.notify(text, subject=title)
    return Completed(message=f"{title}: {text}")
