import { type ArchivePart, type CopyProgress, type ImportProgress, NO_COUNTS } from '../domain/archive.ts';
import { StepFrames } from '../domain/step_codec/frames.ts';
import type { Store } from './contract/store.ts';

const NOTHING: ImportProgress = { ...NO_COUNTS, presentTrajectories: 0n, identicalTrajectories: 0n, leftOut: [] };

/** V7: copies namespaces, then compares each trajectory with its copy. */
export async function* copyStore(
  source: Store,
  target: Store,
  namespaces: readonly string[],
): AsyncGenerator<CopyProgress, void, undefined> {
  const { steps } = await source.countRows();
  const totalSteps = 2n * steps;
  let [doneSteps, copied, verified] = [0n, NOTHING, NOTHING];
  async function* counted(parts: AsyncIterable<ArchivePart>): AsyncGenerator<ArchivePart, void, undefined> {
    for await (const part of parts) {
      yield part;
      if (part.kind === 'steps') for (const frames = new StepFrames(part.bytes); frames.next(); ) doneSteps += 1n;
    }
  }
  const progress = () => ({ doneSteps, totalSteps, namespaces, copied, verified });
  async function* pass(show: (sum: ImportProgress) => void) {
    let sum = NOTHING;
    for (const namespace of namespaces) {
      const begun = sum;
      const parts = counted(source.exportArchive(namespace, { kind: 'namespace' }));
      for await (const at of target.importArchive(namespace, parts)) {
        sum = added(begun, at);
        show(sum);
        yield progress();
      }
    }
  }
  yield progress();
  yield* pass((sum) => {
    copied = sum;
  });
  doneSteps = steps;
  // What is stored already is compared, and left as it is.
  yield* pass((sum) => {
    verified = sum;
  });
  yield { ...progress(), doneSteps: totalSteps };
}

function added(a: ImportProgress, b: ImportProgress): ImportProgress {
  return {
    trajectories: a.trajectories + b.trajectories,
    steps: a.steps + b.steps,
    states: a.states + b.states,
    runs: a.runs + b.runs,
    rollouts: a.rollouts + b.rollouts,
    presentTrajectories: a.presentTrajectories + b.presentTrajectories,
    identicalTrajectories: a.identicalTrajectories + b.identicalTrajectories,
    leftOut: [...a.leftOut, ...b.leftOut],
  };
}
