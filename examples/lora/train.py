"""Fine-tune a frozen GPT through low-rank adapters: one parameter in a hundred is trained."""

import argparse
from pydoc_data.topics import topics

import torch

import segue
from examples.chargpt.model import GPT
from examples.lora.adapter import adapt


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    torch.manual_seed(11)
    text = torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8).long()
    model = GPT(width=options.width, layers=4)
    trained = adapt(model, layers="to_qkv", rank=options.width // 34)
    share = sum(p.numel() for p in trained) / sum(p.numel() for p in model.parameters())
    print(f"{share:.1%} of the parameters are trained", flush=True)
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    run = segue.session()
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(options.steps):
        starts = torch.randint(len(text) - 65, (8,)).tolist()
        rows = torch.stack([text[start : start + 65] for start in starts])
        _, loss = model(rows[:, :-1], rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.report(loss=loss)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    torch.save({name: p for name, p in model.state_dict().items() if "frozen" not in name}, "lora.pt")


if __name__ == "__main__":
    main()
