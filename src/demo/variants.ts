/**
 * Streams one CartPole episode into a trajectory and branches it at step 200 into four variants, which run
 * concurrently. One variant is killed and resumed, one is replayed from a checkpoint, and all are compared with the
 * main line.
 */
import { createHash } from 'node:crypto';
import { openWriter, readSteps } from '../client/index.ts';
import { CartPole, type Gains } from './cartpole.ts';
import { startClientProcess } from './client_process.ts';
import { act, checkpointOf, NOISE, playToEnd, restoreAt, STATE_NAME } from './episode.ts';
import { type DemoOptions, present, together } from './events.ts';
import type { VariantReport, VariantTask } from './variant_client.ts';

/** A way to continue from the branch point: the same cart with another controller. */
interface Variant {
  readonly name: string;
  readonly gains: Gains;
}

/** Keeps the pole up for all 500 steps. Tested with six thousand seeds. */
export const MAIN_GAINS: Gains = { x: 1, xDot: 1.5, theta: 20, thetaDot: 3 };
/** The variant whose client process is killed, and resumed by another process. */
const KILLED: Variant = { name: 'hasty', gains: { x: 1, xDot: 1.5, theta: 20, thetaDot: 8 } };
/** The variant that is replayed from one of its own checkpoints. */
const REPLAYED: Variant = { name: 'centring', gains: { x: 5, xDot: 4, theta: 20, thetaDot: 4 } };
/** Two keep the pole up, one pushes the wrong way at the edge and may leave the track, and one always falls. */
export const VARIANTS: readonly Variant[] = [
  REPLAYED,
  KILLED,
  { name: 'drifting', gains: { x: -1, xDot: -1, theta: 20, thetaDot: 3 } },
  { name: 'angle only', gains: { x: 0, xDot: 0, theta: 1, thetaDot: 0 } },
];
/** The last step that the variants share with the main line. */
const BRANCH_POINT = 200n;
/** From this step on, the first process of KILLED does not wait for acks, and is killed. */
const KILL_AFTER = 300;
/** The checkpoint that REPLAYED is replayed from. */
const REPLAY_FROM = 250n;

interface DemoTrajectory {
  readonly name: string;
  readonly trajectoryId: string;
}

/** Ids of what was created. */
export interface VariantsResult {
  readonly main: DemoTrajectory;
  readonly variants: readonly DemoTrajectory[];
}

export async function playAllVariants(options: DemoOptions): Promise<VariantsResult> {
  const main = await playMainLine(options);
  const variants = await together(
    options,
    VARIANTS.map((variant) => (around) => playVariant(main, variant, around)),
  );
  await replay(present(variants.find(({ name }) => name === REPLAYED.name)), options);
  for (const { name, trajectoryId: otherTrajectoryId } of variants) {
    const { trajectoryId } = main;
    const comparison = await options.client.trajectories.compareTrajectories({ trajectoryId, otherTrajectoryId });
    options.onEvent({ event: 'compared', name, comparison });
  }
  return { main, variants };
}

async function playMainLine(options: DemoOptions): Promise<DemoTrajectory> {
  const { client, seed, onEvent } = options;
  const name = `CartPole-v1, seed ${seed}`;
  const cart = CartPole.reset(seed, NOISE);
  const { trajectory } = await client.trajectories.createTrajectory({
    name,
    taskId: 'CartPole-v1',
    labels: { demo: 'cartpole', seed: String(seed) },
    metadataJson: JSON.stringify({ gains: MAIN_GAINS, noise: NOISE }),
    root: checkpointOf(cart),
  });
  const main = { name, trajectoryId: present(trajectory).id };
  onEvent({ event: 'trajectory', ...main, firstStepNumber: 0n });
  await play(main, { cart, gains: MAIN_GAINS }, options);
  await client.trajectories.setTag({ trajectoryId: main.trajectoryId, name: 'fork', stepNumber: BRANCH_POINT });
  return main;
}

async function playVariant(
  { trajectoryId }: DemoTrajectory,
  variant: Variant,
  options: DemoOptions,
): Promise<DemoTrajectory> {
  const { name, gains } = variant;
  const { trajectory } = await options.client.trajectories.branchTrajectory({
    trajectoryId,
    tag: 'fork',
    name,
    labels: { demo: 'cartpole', seed: String(options.seed), variant: name },
    metadataJson: JSON.stringify({ gains, noise: NOISE }),
  });
  const { id, nextStepNumber } = present(trajectory);
  const branch = { name, trajectoryId: id };
  options.onEvent({ event: 'trajectory', ...branch, firstStepNumber: nextStepNumber });
  if (variant === KILLED) await playKilledAndResumed(branch, gains, options);
  else await play(branch, { cart: await restoreAt(options.client, id, nextStepNumber - 1n), gains }, options);
  return branch;
}

async function play(
  { name, trajectoryId }: DemoTrajectory,
  playing: { readonly cart: CartPole; readonly gains: Gains },
  { client, onEvent, signal }: DemoOptions,
): Promise<void> {
  await using writer = await openWriter(client, { trajectoryId, signal });
  const onStep = (stepNumber: bigint) => onEvent({ event: 'step', name, stepNumber });
  const { nextStepNumber, message } = await playToEnd(writer, { ...playing, signal, onStep });
  onEvent({ event: 'sealed', name, nextStepNumber, message });
}

/**
 * Plays a variant in a process that is killed with unacked steps. Then another process continues at the end of the
 * stored steps.
 */
async function playKilledAndResumed(
  { name, trajectoryId }: DemoTrajectory,
  gains: Gains,
  options: DemoOptions,
): Promise<void> {
  const { client, onEvent } = options;
  for (const hangAfter of [KILL_AFTER, undefined]) {
    const task: VariantTask = { address: client.url, trajectoryId, gains, hangAfter };
    await using child = startClientProcess<VariantReport>(task, options);
    const { pid } = child;
    let isKilled = false;
    for await (const report of child.reports) {
      const nextStepNumber = BigInt(report.nextStepNumber);
      if (report.event === 'opened' && hangAfter !== undefined) onEvent({ event: 'started', name, pid });
      else if (report.event === 'opened') onEvent({ event: 'resumed', name, pid, nextStepNumber });
      else if (report.event === 'step') onEvent({ event: 'step', name, stepNumber: nextStepNumber - 1n });
      else if (report.event === 'sealed') onEvent({ event: 'sealed', name, nextStepNumber, message: report.message });
      else if (report.event === 'hanging') {
        isKilled = true;
        await child.kill();
        const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId });
        const made = { madeNextStepNumber: nextStepNumber, ackedNextStepNumber: BigInt(report.ackedNextStepNumber) };
        const storedNextStepNumber = present(trajectory).nextStepNumber;
        onEvent({ event: 'killed', name, pid, ...made, storedNextStepNumber });
      }
    }
    if (!isKilled) await child.ended();
  }
}

/**
 * Restores a checkpoint of a variant into a fresh environment, continues with the same controller, and compares every
 * step with the stored one: action, observation and the digest of the whole state. Throws if anything differs.
 */
async function replay({ name, trajectoryId }: DemoTrajectory, { client, onEvent, signal }: DemoOptions): Promise<void> {
  const cart = await restoreAt(client, trajectoryId, REPLAY_FROM);
  let identicalSteps = 0;
  for await (const { step } of readSteps(client, { trajectoryId, startStepNumber: REPLAY_FROM + 1n, signal })) {
    const now = traceOf(act(cart, REPLAYED.gains), createHash('sha256').update(cart.snapshot()).digest('hex'));
    const then = traceOf(step, step.states.find((state) => state.name === STATE_NAME)?.digest);
    if (now !== then) {
      throw new Error(`replayed from step ${REPLAY_FROM}, step ${step.stepNumber} is ${now}, expected ${then}`);
    }
    identicalSteps++;
  }
  onEvent({ event: 'replayed', name, fromStepNumber: REPLAY_FROM, identicalSteps });
}

interface WithContent {
  readonly content?: { readonly json?: string | undefined } | undefined;
}

/** The texts of action and observation identify the bits of each number; the digest identifies those of the state. */
function traceOf(
  {
    actions,
    observations,
  }: { readonly actions: readonly WithContent[]; readonly observations: readonly WithContent[] },
  digest?: string,
): string {
  return JSON.stringify([...actions, ...observations].map(({ content }) => content?.json).concat(digest));
}
