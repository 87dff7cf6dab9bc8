"""Trains a tiny model with PyTorch Lightning, and goes on from the checkpoint that was restored."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import lightning
import torch
from ledger import restored, saved, started
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

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


class Keep(ModelCheckpoint):
    def _save_checkpoint(self, trainer, filepath):
        super()._save_checkpoint(trainer, filepath)
        saved(trainer.global_step, Path(filepath))


found = restored()
trainer = lightning.Trainer(
    max_steps=steps,
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[Keep(output, filename="{epoch}-{step}", every_n_train_steps=every, save_top_k=-1), Tell()],
)
rows = torch.utils.data.DataLoader(torch.randn(4096, 64), batch_size=8)
trainer.fit(Model(), rows, ckpt_path=str(found) if found else None)
