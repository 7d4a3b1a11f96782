"""Fine-tune a small GPT-2 with the Hugging Face Trainer, on the texts of Python's own help."""

import argparse
from pydoc_data.topics import topics

import torch
from torch.utils.data import TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


def collate(rows):
    ids = torch.stack([row for (row,) in rows])
    return {"input_ids": ids, "labels": ids}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=float, default=2)
    options = parser.parse_args()
    set_seed(5)
    text = "\n".join(topics[name] for name in sorted(topics)).encode()[: 640 * 48]
    rows = TensorDataset(torch.frombuffer(bytearray(text), dtype=torch.uint8).long().view(-1, 48))
    shape = {"vocab_size": 256, "n_positions": 48, "n_embd": 64, "n_layer": 2, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        output_dir="huggingface",
        num_train_epochs=options.epochs,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        warmup_steps=10,
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate)
    trainer.train()
    torch.save(model.state_dict(), "huggingface.pt")


if __name__ == "__main__":
    main()
