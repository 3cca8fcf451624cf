import { randomUUID } from 'node:crypto';
import { setImmediate as nextIteration } from 'node:timers/promises';
import { openWriter, type TrajectoryWriter, type WriterEvent } from '../../../src/client/index.ts';
import type { LifePlan } from './raw-writer.ts';
import { makeStep } from './steps.ts';

/** Steps appended in one iteration of the event loop, so that other writers come in between. */
const STEPS_AT_ONCE = 4;

/**
 * One writer of the client helper: takes the trajectory over, continues at its end, and lets the helper reconnect and
 * replay. The fate of steps that are unacked when another takes over is unknown. Rejects with the error that made the
 * helper give up.
 */
export async function helperLife(plan: LifePlan): Promise<void> {
  const writerId = randomUUID();
  const { client, trajectoryId, window, silenceMs } = plan;
  let writer: TrajectoryWriter | undefined;
  const onEvent = (event: WriterEvent) => {
    if (event.type !== 'opened') return;
    const { epoch, nextStepNumber: next } = event;
    plan.history.granted({ trajectory: trajectoryId, writer: writerId, epoch, next });
    const found = writer === undefined ? 0 : Number(next - writer.ackedNextStepNumber);
    if (found > 0) plan.history.replayedStored += found;
  };
  writer = await openWriter(client, {
    trajectoryId,
    writerId,
    maxUnackedSteps: window,
    silenceMs,
    giveUpAfterMs: 30_000,
    onEvent,
  });
  for (let left = plan.steps; left > 0 && !plan.stop.aborted; left -= 1) {
    await writer.ready();
    append(writer, plan);
    if (left % STEPS_AT_ONCE === 0) await nextIteration();
  }
  await writer.close();
}

function append(writer: TrajectoryWriter, { history, trajectoryId }: LifePlan): void {
  const { infoJson, states, content } = makeStep(writer.writerId, writer.nextStepNumber);
  const sent = history.sending(trajectoryId, writer.writerId, writer.nextStepNumber, content);
  writer.append({ infoJson, states }).then(
    () => history.settle(sent, 'acked'),
    () => history.settle(sent, 'unknown'), // close(), or ready(), reports the error
  );
}
