"""A small GAN that learns a ring of eight points: two networks, two optimizers, two losses."""

import argparse
import math

import torch
from torch import nn


def perceptron(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs)
    )


def real_points(count):
    angles = torch.randint(8, (count,)) * (2 * math.pi / 8)
    return torch.stack([angles.cos(), angles.sin()], 1) + 0.05 * torch.randn(count, 2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    torch.manual_seed(7)
    generator, critic = perceptron(8, 2), perceptron(2, 1)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.99))
    ones, zeros = torch.ones(128, 1), torch.zeros(128, 1)
    judge = nn.functional.binary_cross_entropy_with_logits
    for step in range(options.steps):
        fake = generator(torch.randn(128, 8))
        critic_loss = judge(critic(real_points(128)), ones) + judge(critic(fake.detach()), zeros)
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        generator_loss = judge(critic(fake), ones)
        generator_optimizer.zero_grad()
        generator_loss.backward()
        generator_optimizer.step()
        if step % 200 == 0:
            print(f"step {step}: critic {critic_loss.item():.4f}, generator {generator_loss.item():.4f}", flush=True)
    torch.save(generator.state_dict(), "gan.pt")


if __name__ == "__main__":
    main()
