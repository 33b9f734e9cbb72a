"""``rlrun export``: a trained policy as a file for other programs (experiment/export.py)."""

from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli.arguments import RunOrCheckpoint, Trust, output_option


def export(
    run_or_checkpoint: RunOrCheckpoint,
    *,
    onnx: Annotated[
        Path | None, output_option("FILE", "Write the policy in the ONNX format.")
    ] = None,
    torchscript: Annotated[
        Path | None, output_option("FILE", "Write the policy as TorchScript.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="ID", help="Policy to export, of several.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Export a trained policy, with its connectors, for programs without rlrun.

    rlrun export runs/ppo_cartpole --onnx cartpole.onnx --torchscript cartpole.pt
    """
    from rlrun.experiment import export as room

    files = room.export(
        run_or_checkpoint, onnx=onnx, torchscript=torchscript, policy_id=policy, trust=trust
    )
    typer.echo("\n".join(line for file in files for line in file.lines()))
