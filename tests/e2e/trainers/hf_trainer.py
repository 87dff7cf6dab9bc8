"""Trains a tiny model with the Trainer of Hugging Face, and goes on from the checkpoint that was restored."""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from ledger import completing, restored, started, sums
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
    trainer,
)

output, steps, every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        ids = torch.arange(8) + at % 8
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": at % 2}


class Tell(TrainerCallback):
    def on_train_begin(self, args, state, control, **_):
        started(state.global_step, found)

    def on_step_end(self, args, state, control, **_):
        time.sleep(0.02)


class State(TrainerState):
    """Tells what a set has before its last file, which it writes elsewhere first."""

    def save_to_json(self, json_path):
        folder = Path(json_path).parent
        if folder.name.startswith("checkpoint-"):
            with tempfile.TemporaryDirectory() as elsewhere:
                super().save_to_json(str(Path(elsewhere, Path(json_path).name)))
                completing(self.global_step, folder.name, sums(folder) | sums(Path(elsewhere)))
        super().save_to_json(json_path)


found = restored()
config = BertConfig(
    vocab_size=32,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=16,
)
arguments = TrainingArguments(
    output,
    max_steps=steps,
    save_steps=every,
    save_total_limit=3,
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
    per_device_train_batch_size=4,
    logging_steps=every,
)
# The one that it loads from a checkpoint is of this class, too.
trainer.TrainerState = State
training = Trainer(BertForSequenceClassification(config), arguments, train_dataset=Rows(), callbacks=[Tell()])
training.train(resume_from_checkpoint=str(found) if found else None)
