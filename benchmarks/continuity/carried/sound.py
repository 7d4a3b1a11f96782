"""Sound programs in the style of public scripts. They count, time, print and average, and a resume loses nothing that
affects training."""

from __future__ import annotations

from benchmarks.continuity.carried.kind import Kind, at_top, in_epochs, in_steps, whole

_METER = """
class AverageMeter:
    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = name, fmt
        self.reset()

    def reset(self):
        self.val, self.avg, self.sum, self.count = 0, 0, 0, 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return f"{self.name} {self.val:.4f} ({self.avg:.4f})"


class ProgressMeter:
    def __init__(self, num_batches, meters, prefix=""):
        self.meters, self.prefix = meters, prefix

    def display(self, batch):
        print("\\t".join([self.prefix + str(batch), *[str(meter) for meter in self.meters]]))
"""

KINDS: tuple[Kind, ...] = (
    at_top(
        "nanoGPT",
        before="""
        best_val_loss = 1e9
        state = {"best": best_val_loss}
        run.track(state=state)
        X, Y = draw()
        run.track_variables(globals(), "X", "Y")
        raw_model = model
        local_iter_num = 0
        running_mfu = -1.0
        t0 = time.time()


        def estimate_mfu(samples, dt):
            return samples * 6 / dt / 312e12


        def estimate_loss():
            with run.evaluating(), torch.no_grad():
                out = {}
                for split in ["train", "val"]:
                    losses = torch.zeros(3)
                    for k in range(3):
                        losses[k] = nn.functional.mse_loss(model(x), y).item()
                    out[split] = losses.mean()
                return out
        """,
        loss="""
        lr = 0.02 / (1 + step / 40)
        set_lr(optimizer, lr)
        if step % 10 == 0:
            losses = estimate_loss()
            print(f"step {step}: train {losses['train']:.4f} val {losses['val']:.4f}")
            if losses["val"] < state["best"]:
                state["best"] = float(losses["val"])
        for micro_step in range(2):
            loss = nn.functional.mse_loss(raw_model(X), Y) / 2
            X, Y = draw()
        """,
        body="""
        t1 = time.time()
        dt = t1 - t0
        t0 = t1
        if step % 5 == 0:
            lossf = loss.item() * 2
            if local_iter_num >= 5:
                mfu = estimate_mfu(32, dt)
                running_mfu = mfu if running_mfu == -1.0 else 0.9 * running_mfu + 0.1 * mfu
            print(f"iter {step}: loss {lossf:.4f}, time {dt * 1000:.2f}ms, mfu {running_mfu * 100:.2f}%")
        local_iter_num += 1
        """,
    ),
    in_epochs(
        "ImageNet example with meters",
        top=_METER,
        begin="""
        batch_time, losses = AverageMeter("Time"), AverageMeter("Loss")
        progress = ProgressMeter(6, [batch_time, losses], prefix=f"Epoch: [{epoch}]")
        end = time.time()
        """,
        body="""
        losses.update(loss.item(), a.size(0))
        batch_time.update(time.time() - end)
        end = time.time()
        progress.display(run.step)
        """,
    ),
    in_epochs(
        "language model with a running total",
        begin="total_loss = 0.0\nstart_time = time.time()",
        body="""
        total_loss += loss.item()
        if run.step % 3 == 0 and run.step > 0:
            cur_loss = total_loss / 3
            elapsed = time.time() - start_time
            ms, ppl = elapsed * 1000 / 3, math.exp(min(cur_loss, 9))
            print("| ms/batch {:5.2f} | loss {:5.2f} | ppl {:8.2f}".format(ms, cur_loss, ppl))
            total_loss = 0
            start_time = time.time()
        """,
    ),
    in_epochs(
        "CIFAR tutorial",
        begin="running_loss = 0.0",
        body="""
        running_loss += loss.item()
        if run.step % 4 == 3:
            print(f"[{epoch + 1}] loss: {running_loss / 4:.3f}")
            running_loss = 0.0
        """,
    ),
    in_epochs(
        "kuangliu's accuracy in a progress line",
        begin="train_loss = 0\ncorrect = 0\ntotal = 0",
        body="""
        train_loss += loss.item()
        total += b.size(0)
        correct += (model(a).detach() > 0).eq(b > 0).sum().item()
        mean = train_loss / (run.step + 1)
        print("Loss: %.3f | Acc: %.3f%% (%d/%d)" % (mean, 100.0 * correct / total, correct, total))
        """,
    ),
    in_steps(
        "settings in namespaces, and a batch in a tuple",
        top="""
        import argparse

        def rate_of(args, step):
            return args.optim.rate * (1 - step / 80)
        """,
        before="""
        args = argparse.Namespace(optim=SimpleNamespace(rate=0.02), seen=SimpleNamespace(batch=None))
        """,
        body="""
        batch = (a, b, [len(a)])
        args.seen.batch = batch
        args.last_loss = float(loss.detach())
        set_lr(optimizer, rate_of(args, step))
        if step % 10 == 0:
            print(batch[2], args.last_loss)
        """,
    ),
    in_steps(
        "carried values under another name, and a long tuple",
        before="""
        kept = run.carry("schedule", rate=0.02, seen=[])
        chain = ()
        for number in range(1500):
            chain = (number, chain)
        """,
        body="""
        kept.rate *= 0.97
        kept.seen.append(step)
        set_lr(optimizer, kept.rate * (1 + 0.01 * len(kept.seen)))
        """,
    ),
    in_steps(
        "smooth loss for a log line",
        before="smooth = None\nseen = 0\nstarted = time.perf_counter()",
        body="""
        smooth = loss.item() if smooth is None else 0.98 * smooth + 0.02 * loss.item()
        seen += len(a)
        if step % 10 == 0:
            rate = seen / (time.perf_counter() - started)
            print(f"{step} {smooth:.4f} {rate:.0f} samples/s")
        """,
    ),
    in_steps(
        "logger and text file",
        top="import logging\nlogger = logging.getLogger('train')",
        before='calls = 0\nbest_seen = 1e9\nlog_file = open("/dev/null", "a")',
        body="""
        calls += 1
        best_seen = min(best_seen, loss.item())
        logger.info("step %d best %.3f calls %d", step, best_seen, calls)
        log_file.write(f"{step} {best_seen}\\n")
        """,
    ),
    in_steps(
        "progress bar with a postfix",
        top="""
        class Bar:
            def __init__(self):
                self.n, self.text = 0, ""

            def set_postfix(self, **values):
                self.text = str(values)

            def update(self, n=1):
                self.n += n
        """,
        before="pbar = Bar()\nmean = 0.0",
        body="mean = 0.9 * mean + 0.1 * loss.item()\npbar.update(1)\npbar.set_postfix(loss=f'{mean:.3f}')",
    ),
    in_steps(
        "TensorBoard writer and its own count",
        top="""
        class Writer:
            def add_scalar(self, tag, value, step):
                pass
        """,
        before="writer = Writer()\nglobal_step = 0\nloss_sum = 0.0",
        body="""
        global_step += 1
        loss_sum += loss.item()
        writer.add_scalar("loss", loss_sum / global_step, global_step)
        """,
    ),
    in_steps(
        "everything derived from the step",
        before="warm = 10",
        loss="scale = min(1.0, (step + 1) / warm)\nloss = loss * scale",
        body="""
        lr = 0.02 * 0.5 ** (step // 15)
        set_lr(optimizer, lr)
        if step % 5 == 0:
            last_shown = loss.item()
            print(last_shown)
        """,
    ),
    in_steps(
        "count that begins with the run's step",
        before="iterations = run.step",
        body="iterations += 1\nif iterations > 20:\n    set_lr(optimizer, 0.005)",
    ),
    in_steps(
        "values that run.carry holds",
        before='kept = run.carry("kept", total=0.0, recent=[], hidden=torch.zeros(8))',
        body="""
        kept.total += loss.item()
        kept.recent.append(loss.item())
        kept.hidden = 0.9 * kept.hidden + 0.1 * a.mean(0)
        set_lr(optimizer, 0.02 / (1 + kept.total / 30 + sum(kept.recent[-3:]) + float(kept.hidden.abs().sum())))
        """,
    ),
    in_epochs(
        "sums of an epoch that run.carry holds",
        before="""
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        run.track(scheduler=scheduler)
        """,
        begin='sums = run.carry("sums", loss=0.0, count=0)',
        body="sums.loss += loss.item()\nsums.count += 1",
        end="scheduler.step(sums.loss / sums.count)",
    ),
    in_steps(
        "tracked dict",
        before='state = {"best": 1e9, "bad": 0}\nrun.track(state=state)',
        body="""
        best = state["best"]
        if loss.item() < best:
            state["best"], state["bad"] = loss.item(), 0
        else:
            state["bad"] += 1
        if state["bad"] > 8:
            set_lr(optimizer, 0.005)
        """,
    ),
    at_top(
        "makemore's lists of statistics",
        before="ud = []",
        body="""
        with torch.no_grad():
            ud.append([(0.02 * p.grad.std() / p.data.std()).log10().item() for p in model.parameters() if p.ndim == 2])
        if step % 10 == 0:
            print(f"{step:7d}: {loss.item():.4f} {ud[-1]}")
        """,
    ),
    in_steps(
        "save to a file once in a while by the clock",
        before="last_save = time.time()",
        body="""
        if time.time() - last_save > 60:
            torch.save(model.state_dict(), "/dev/null")
            last_save = time.time()
        """,
    ),
    whole(
        "minGPT's trainer with callbacks",
        source="""
        class Trainer:
            def __init__(self, model, optimizer):
                self.model, self.optimizer = model, optimizer
                self.callbacks = defaultdict(list)
                self.iter_num, self.iter_time, self.iter_dt = 0, 0.0, 0.0

            def add_callback(self, event, callback):
                self.callbacks[event].append(callback)

            def trigger_callbacks(self, event):
                for callback in self.callbacks.get(event, []):
                    callback(self)

            def run(self):
                self.iter_time = time.time()
                for step in run.steps(40):
                    a, b = draw()
                    self.loss = nn.functional.mse_loss(self.model(a), b)
                    learn(self.optimizer, self.loss)
                    run.report(loss=self.loss)
                    self.trigger_callbacks("on_batch_end")
                    self.iter_num += 1
                    tnow = time.time()
                    self.iter_dt = tnow - self.iter_time
                    self.iter_time = tnow


        def batch_end_callback(trainer):
            if trainer.iter_num % 10 == 0:
                loss = trainer.loss.item()
                print(f"iter_dt {trainer.iter_dt * 1000:.2f}ms; iter {trainer.iter_num}: train loss {loss:.5f}")


        with segue.session() as run:
            model = nn.Linear(8, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
            run.track(model=model, optimizer=optimizer)
            trainer = Trainer(model, optimizer)
            trainer.add_callback("on_batch_end", batch_end_callback)
            trainer.run()
        """,
    ),
    in_epochs(
        "epochs with accuracy and a summary",
        begin="epoch_start_time = time.time()\nepoch_loss, n_batches = 0.0, 0\nmodel.train()",
        body="epoch_loss += loss.item()\nn_batches += 1",
        end="""
        model.eval()
        with run.evaluating(), torch.no_grad():
            correct = 0
            for k in range(0, 96, 32):
                correct += int(((model(x[k : k + 32]) - y[k : k + 32]).abs() < 1).sum())
        seconds, mean = time.time() - epoch_start_time, epoch_loss / n_batches
        print("-" * 20, f"| end of epoch {epoch} | {seconds:.1f}s | {mean:.3f} | {correct / 96:.2f}")
        """,
    ),
    in_epochs(
        "DCGAN example with two networks",
        top="""
        def noise():
            return torch.randn(16, 8)
        """,
        before="""
        netG = nn.Linear(8, 8)
        optimizerG = torch.optim.Adam(netG.parameters(), lr=0.01)
        run.track(netG=netG, optimizerG=optimizerG)
        fixed_noise = torch.ones(4, 8)
        img_list = []
        G_losses = []
        D_losses = []
        iters = 0
        """,
        loss="""
        fake = netG(noise())
        errD_fake = model(fake.detach()).square().mean()
        loss = loss + 0.1 * errD_fake
        """,
        body="""
        optimizerG.zero_grad()
        errG = -model(netG(noise())).mean() * 0.01
        errG.backward()
        optimizerG.step()
        if iters % 3 == 0:
            print("[%d/%d] Loss_D: %.4f Loss_G: %.4f" % (epoch, 6, loss.item(), errG.item()))
        iters += 1
        """,
    ),
    in_epochs(
        "MNIST example with a test loss",
        before="""
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
        run.track(scheduler=scheduler)
        """,
        begin="model.train()\nseen = 0",
        body="""
        seen += len(a)
        if run.step % 2 == 0:
            print(f"Train Epoch: {epoch} [{seen}/96 ({100.0 * seen / 96:.0f}%)]\\tLoss: {loss.item():.6f}")
        """,
        end="""
        model.eval()
        test_loss, correct = 0, 0
        with run.evaluating(), torch.no_grad():
            for k in range(0, 96, 32):
                test_loss += nn.functional.mse_loss(model(x[k : k + 32]), y[k : k + 32], reduction="sum").item()
        test_loss /= 96
        print(f"Test set: Average loss: {test_loss:.4f}, Accuracy: {correct}/96")
        scheduler.step()
        """,
    ),
    in_steps(
        "min-char-rnn's smooth loss",
        before="smooth_loss = -math.log(1.0 / 65) * 25\nn, p = 0, 0",
        body="""
        smooth_loss = smooth_loss * 0.999 + loss.item() * 0.001
        if n % 10 == 0:
            print("iter %d, loss: %f, at %d" % (n, smooth_loss, p))
        p += 25
        n += 1
        """,
    ),
    in_steps(
        "speed and memory in a log line",
        before="tokens = 0\nt0 = time.time()\nnorms = []\nlines = []",
        body="""
        tokens += len(a) * 8
        norms.append(sum(p.grad.norm().item() for p in model.parameters()))
        if (step + 1) % 10 == 0:
            dt = time.time() - t0
            lines.append(f"{step + 1} {loss.item():.3f} norm {sum(norms) / len(norms):.2f} {tokens / dt:.0f} tok/s")
            print(lines[-1])
            norms = []
            tokens = 0
            t0 = time.time()
        """,
    ),
    in_steps(
        "functions made when they are first needed",
        before="step_fn, scale_of = None, {}",
        loss="""
        if step_fn is None:
            step_fn = torch.jit.script(nn.MSELoss())
        kind = "odd" if step % 2 else "even"
        if kind not in scale_of:
            scale_of[kind] = (lambda value: value * 0.5) if kind == "odd" else (lambda value: value)
        loss = scale_of[kind](step_fn(model(a), b))
        """,
    ),
    in_steps(
        "start, rate and file of a log line",
        top="""
        from datetime import datetime, timedelta
        from decimal import Decimal
        from pathlib import Path
        """,
        before="started, spent, last_log = datetime.now(), timedelta(0), None\ncost = Decimal(0)",
        body="""
        spent = datetime.now() - started
        cost += Decimal("0.0001") * len(a)
        if step % 10 == 9:
            last_log = Path(f"log-{step}.txt")
            last_log.write_text(f"{step} {spent} {cost}\\n")
            print(f"{step}: {spent} {cost} in {last_log}")
        """,
    ),
    in_steps(
        "rates changed by hand at milestones of the step",
        before="""
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0)
        run.track(scheduler=scheduler)
        """,
        body="""
        if step in (15, 30):
            optimizer.param_groups[0]["lr"] *= 0.5
            scheduler.base_lrs[0] *= 0.5
        scheduler.step()
        """,
    ),
)
