import type { App } from '../../app/app.ts';
import type { Caller } from '../../domain/caller.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import { serverDraining } from '../drain.ts';
import type { Follower } from './feed.ts';
import { trajectoryDeleted } from './step_page.ts';
import type { ReadStepsArgs, StepsRead } from './steps_read.ts';

/**
 * RD2, R2: every step from `start` on, once, in order, then live. Hints, polls and reconnects of the listener all mean "read again by number",
 * so none of them has to be trusted. Ends at `end`, with the seal, or when the signal is aborted.
 */
export async function* followSteps(
  app: App,
  caller: Caller,
  trajectory: Trajectory,
  args: ReadStepsArgs,
): AsyncGenerator<StepsRead, void, undefined> {
  // Subscribes; the row was read before, so the feed looks again before it waits.
  const follower = app.feeds.join(caller.namespace, trajectory, args.view);
  const wake = () => follower.wake();
  const stopWaitingForDrain = app.drain.onBegin(wake);
  args.signal.addEventListener('abort', wake, { once: true });
  try {
    yield* follow(app, follower, trajectory, args);
  } finally {
    args.signal.removeEventListener('abort', wake);
    stopWaitingForDrain();
    follower.leave();
  }
}

async function* follow(
  app: App,
  follower: Follower,
  trajectory: Trajectory,
  args: ReadStepsArgs,
): AsyncGenerator<StepsRead, void, undefined> {
  const to = args.endStepNumber;
  const progressTicks = Math.max(1, Math.floor(app.settings.progressMs / app.settings.pollMs) - 1);
  let next = args.startStepNumber;
  let told = false; // that it is caught up
  let live = false;
  while (!args.signal.aborted && (to === undefined || next < to)) {
    if (app.drain.begun) throw serverDraining();
    if (follower.gone) throw trajectoryDeleted(trajectory.id);
    if (next < follower.end) {
      const page = await follower.page(next, live);
      for (const { trajectoryId, steps: all } of page) {
        const steps = to === undefined ? all : all.filter(({ stepNumber }) => stepNumber < to);
        if (steps.length === 0) return;
        next += BigInt(steps.length);
        const caughtUp = next >= follower.end;
        const sealed = caughtUp && follower.sealed;
        live ||= caughtUp;
        told = caughtUp;
        yield { trajectoryId, steps, nextStepNumber: next, caughtUp, sealed };
        if (sealed) return;
      }
      continue;
    }
    if (follower.sealed) {
      yield { trajectoryId: '', steps: [], nextStepNumber: next, caughtUp: true, sealed: true };
      return;
    }
    live = true;
    if (!told) yield { trajectoryId: '', steps: [], nextStepNumber: next, caughtUp: true, sealed: false };
    await follower.change(next, progressTicks);
    // Nothing new after all that time: say so, as a mark of progress.
    told = next < follower.end;
  }
}
