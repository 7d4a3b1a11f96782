"""A Hugging Face Trainer on data with a pattern, with the arguments that change when and why it ends."""

from __future__ import annotations

import argparse
import time

import torch
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from segue.integrations.transformers import SegueCallback


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        ids = torch.arange(12) * (index % 7 + 1) % 20
        return {"input_ids": ids, "labels": ids}


class Hang(TrainerCallback):
    """Hangs in one step, so that a test can kill the process there."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        while state.global_step == self.step:
            time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=float, default=5)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--stop-early", action="store_true")
    parser.add_argument("--evaluate-every", type=int, help="steps; once an epoch by default")
    parser.add_argument("--load-best", choices=("epoch", "best"), help="when the Trainer saves")
    parser.add_argument("--hang-at", type=int, default=-1)
    parser.add_argument("--forget-checkpoint", action="store_true")
    parser.add_argument("--hang-after", action="store_true", help="hang when training is over")
    parser.add_argument("--save-to", default="")
    options = parser.parse_args()
    set_seed(5)
    shape = {"vocab_size": 20, "n_positions": 12, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    early = {"eval_strategy": "epoch", "metric_for_best_model": "loss", "load_best_model_at_end": True}
    if options.evaluate_every:
        early |= {"eval_strategy": "steps", "eval_steps": options.evaluate_every, "load_best_model_at_end": False}
    if options.load_best:  # The best one is the first.
        best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
        early |= best | {"save_total_limit": 3}
    arguments = TrainingArguments(
        output_dir="huggingface",
        num_train_epochs=options.epochs,
        per_device_train_batch_size=6 // options.accumulate,
        gradient_accumulation_steps=options.accumulate,
        learning_rate=1e-3,
        logging_steps=7,
        save_strategy=options.load_best or ("epoch" if options.stop_early else "no"),
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **(early if options.stop_early or options.load_best else {}),
    )
    callback = SegueCallback()
    callbacks = [Hang(options.hang_at), callback]
    if options.stop_early:  # No loss is as much better as this asks for.
        callbacks.append(EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=100.0))
    trainer = Trainer(model=model, args=arguments, train_dataset=Rows(), eval_dataset=Rows(), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=None if options.forget_checkpoint else callback.checkpoint)
    while options.hang_after:
        time.sleep(1)
    if options.save_to:
        torch.save(model.state_dict(), options.save_to)


if __name__ == "__main__":
    main()
