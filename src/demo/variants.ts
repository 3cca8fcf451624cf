/**
 * Streams one CartPole episode into a trajectory and branches it at step 200 into four variants, which run
 * concurrently. One variant is killed and resumed, one is replayed from a checkpoint, and all are compared with the
 * main line.
 */
import { createHash } from 'node:crypto';
import { setImmediate } from 'node:timers/promises';
import { toJson } from '@bufbuild/protobuf';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { CompareTrajectoriesResponseSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { counted, JSON_FORM } from '../cli/columns.ts';
import { openWriter, readSteps, type StepInit, type TrajectoryWriter } from '../client/index.ts';
import { CartPole, type Gains } from './cartpole.ts';
import {
  act,
  checkpointOf,
  HANGING,
  isOver,
  NOISE,
  PID,
  playInProcess,
  restoreAt,
  STATE_NAME,
  standStill,
} from './episode.ts';
import { type DemoBar, type DemoOptions, type PlayOptions, present, together } from './events.ts';

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
/** Number of steps in flight when the process stops. Some are sent one by one, the rest at once. */
const BURST = 20;
/** The checkpoint that REPLAYED is replayed from. */
const REPLAY_FROM = 250n;

/** A way to continue from the branch point: the same cart with another controller. */
type Variant = Pick<Player, 'name' | 'gains'>;
type DemoTrajectory = Pick<Player, 'name' | 'trajectoryId'>;

/** What plays a trajectory to its end. */
export interface Player {
  readonly name: string;
  readonly trajectoryId: string;
  readonly gains: Gains;
  /** The first process hangs with unacked steps, to be killed. The second one resumes. Undefined: not a process. */
  readonly part?: 'first' | 'second';
}

/** Returns what was created, and the variants as compared with the main line. */
export async function playAllVariants(options: DemoOptions) {
  const main = await playMainLine(options);
  const variants = await together(
    options,
    VARIANTS.map((variant) => (around) => playVariant(main, variant, around)),
  );
  await replay(present(variants.find(({ name }) => name === REPLAYED.name)), options);
  const compared = [];
  for (const { name, trajectoryId: otherTrajectoryId } of variants) {
    const { trajectoryId } = main;
    const comparison = await options.client.trajectories.compareTrajectories({ trajectoryId, otherTrajectoryId });
    compared.push({ name, comparison });
    const json = toJson(CompareTrajectoriesResponseSchema, comparison, JSON_FORM);
    options.onEvent({ event: 'compared', name, comparison: json });
  }
  return { main, variants, compared };
}

/** The bar of a trajectory, which is full after the longest episode of CartPole-v1. */
function barsOf(name: string, bar: Pick<DemoBar, 'value' | 'note'>): DemoBar[] {
  return [{ name, total: 500, ...bar }];
}

async function playMainLine(options: DemoOptions): Promise<DemoTrajectory> {
  const { client, seed, onEvent } = options;
  const name = `CartPole-v1, seed ${seed}`;
  const { trajectory } = await client.trajectories.createTrajectory({
    name,
    taskId: 'CartPole-v1',
    labels: { demo: 'cartpole', seed: String(seed) },
    metadataJson: JSON.stringify({ gains: MAIN_GAINS, noise: NOISE }),
    root: checkpointOf(CartPole.reset(seed, NOISE)),
  });
  const main = { name, trajectoryId: present(trajectory).id };
  const shown = { lines: [`trajectory ${main.trajectoryId}`], bars: barsOf(name, { value: 0 }) };
  onEvent({ event: 'trajectory', ...main, firstStepNumber: 0n }, shown);
  await play({ ...main, gains: MAIN_GAINS }, options);
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
  const lines = [`trajectory ${id}, from step ${nextStepNumber}`];
  const bars = barsOf(name, { value: Number(nextStepNumber) });
  options.onEvent({ event: 'trajectory', ...branch, firstStepNumber: nextStepNumber }, { lines, bars });
  if (variant === KILLED) await playKilledAndResumed({ ...branch, gains }, options);
  else await play({ ...branch, gains }, options);
  return branch;
}

/**
 * Plays a variant in a process that is killed with unacked steps. Then another process continues at the end of the
 * stored steps.
 */
async function playKilledAndResumed(player: Player, options: DemoOptions): Promise<void> {
  const hung = await playInProcess({ ...player, part: 'first' } satisfies Player, options);
  if (hung === undefined) throw new Error('the episode ended before its process was killed');
  const { pid, name } = hung;
  const { trajectory } = await options.client.trajectories.getTrajectory(player);
  const stored = present(trajectory).nextStepNumber;
  const [made, acked] = [BigInt(String(hung.madeNextStepNumber)), BigInt(String(hung.ackedNextStepNumber))];
  const ends = { madeNextStepNumber: made, ackedNextStepNumber: acked, storedNextStepNumber: stored };
  const lines = [
    `process ${pid} killed (SIGKILL) with ${counted(made - acked, 'step')} unacked:`,
    `    it had sent 0–${made - 1n}, and 0–${acked - 1n} were acked; the store holds 0–${stored - 1n}`,
  ];
  options.onEvent({ event: 'killed', name, pid, ...ends }, { lines });
  await playInProcess({ ...player, part: 'second' } satisfies Player, options);
}

/**
 * Plays a trajectory to its end. Keeps nothing that the store does not hold: continues where the trajectory ends, with
 * the state there, whether the steps are its own or those of a killed process (rule W13).
 */
export async function play(player: Player, { client, onEvent, signal }: PlayOptions): Promise<void> {
  const { name, trajectoryId, gains, part } = player;
  await using writer = await openWriter(client, { trajectoryId, signal });
  const next = writer.nextStepNumber;
  if (part === 'first') onEvent({ event: 'started', name }, { lines: [`played by process ${PID}`] });
  if (part === 'second') {
    const lines = [`process ${PID} resumes at step ${next}, with the state of step ${next - 1n}`];
    onEvent({ event: 'resumed', name, nextStepNumber: next }, { lines });
  }
  const cart = await restoreAt(client, trajectoryId, next - 1n);
  while (!isOver(cart)) {
    signal.throwIfAborted();
    // Each step is durable before the next one is played.
    const { stepNumber } = await writer.append(act(cart, gains));
    onEvent({ event: 'step', name, stepNumber }, { bars: barsOf(name, { value: Number(stepNumber) }) });
    if (part === 'first' && cart.state.steps === KILL_AFTER) await hang(writer, cart, player, onEvent);
  }
  const { steps, x } = cart.state;
  const fall = `${Math.abs(x) > 2.4 ? 'left the track' : 'fell'} at step ${steps}`;
  const message = cart.terminated ? fall : `balanced for ${counted(steps, 'step')}`;
  const { nextStepNumber } = await writer.seal(cart.terminated ? Status.FAILED : Status.COMPLETED, message);
  onEvent(
    { event: 'sealed', name, nextStepNumber, message },
    { lines: [message], bars: barsOf(name, { note: message }) },
  );
}

async function hang(
  writer: TrajectoryWriter,
  cart: CartPole,
  { name, gains }: Player,
  onEvent: DemoOptions['onEvent'],
): Promise<never> {
  for (let i = 0; i < BURST; i++) {
    if (isOver(cart))
      throw new Error(`the episode ended after ${cart.state.steps} steps, before the process was killed`);
    void writer.append(act(cart, gains));
    if (i < BURST / 2) await setImmediate();
  }
  // No code runs between the last append and the stop, so the second half of the burst cannot have been acked.
  const { nextStepNumber: madeNextStepNumber, ackedNextStepNumber } = writer;
  onEvent({ event: HANGING, name, madeNextStepNumber, ackedNextStepNumber });
  standStill();
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
  const lines = [`replayed from its step ${REPLAY_FROM} in a fresh environment:`];
  const success = [
    `    ${counted(identicalSteps, 'step')}, `,
    'every observation and state is identical, bit for bit',
  ] as const;
  onEvent({ event: 'replayed', name, fromStepNumber: REPLAY_FROM, identicalSteps }, { lines, success });
}

/** The texts of action and observation identify the bits of each number; the digest identifies those of the state. */
function traceOf({ actions, observations }: StepInit, digest?: string): string {
  return JSON.stringify(
    [...(actions ?? []), ...(observations ?? [])].map(({ content }) => content?.json).concat(digest),
  );
}
