"""Trains a tiny model with PyTorch Lightning, and goes on from the checkpoint that was restored."""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import lightning
import torch
from ledger import completing, restored, started, sums
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins import TorchCheckpointIO

output, steps, every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def training_step(self, batch, _):
        time.sleep(0.02)
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Tell(Callback):
    def on_train_start(self, trainer, model):
        started(trainer.global_step, found)


class Told(TorchCheckpointIO):
    """Tells what a file has before it is there: the same bytes, written elsewhere."""

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        with tempfile.TemporaryDirectory() as elsewhere:
            first = Path(elsewhere, Path(path).name)
            super().save_checkpoint(checkpoint, first, storage_options)
            completing(checkpoint["global_step"], first.name, sums(first))
        super().save_checkpoint(checkpoint, path, storage_options)


found = restored()
trainer = lightning.Trainer(
    max_steps=steps,
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    plugins=[Told()],
    callbacks=[ModelCheckpoint(output, filename="{epoch}-{step}", every_n_train_steps=every, save_top_k=-1), Tell()],
)
rows = torch.utils.data.DataLoader(torch.randn(4096, 64), batch_size=8)
trainer.fit(Model(), rows, ckpt_path=str(found) if found else None)
