/**
 * A simulation told as git would: an experiment, a main run of CartPole to step 200, three branches from there with
 * other learning rates and gains, and then what one asks of them: compare, tree, lineage.
 *
 *     npm start                              # the server, in another terminal
 *     npx node examples/simulation.ts        # or with another ADDRESS: … simulation.ts 127.0.0.1:50051
 *
 * Look around afterwards: `npm run -s anabranch -- runs`, `… run NAME`, `… tree NAME`.
 */
import process from 'node:process';
import type { Run } from '../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../gen/es/anabranch/v1/status_pb.js';
// In a project of your own: from 'anabranch/client', and the generated types from 'anabranch/gen/anabranch/v1/…_pb'.
import {
  type AnabranchClient,
  connectClient,
  openMetricLogger,
  openWriter,
  type TrajectoryWriter,
} from '../src/client/index.ts';

/** CartPole-v1's state: the cart's place and speed, the pole's angle and angular speed. */
type Cart = readonly [x: number, xDot: number, theta: number, thetaDot: number];
type Push = -1 | 1;

/** One step of 0.02 s of CartPole-v1: the published dynamics, integrated by Euler. */
function moved([x, xDot, theta, thetaDot]: Cart, push: Push): Cart {
  const [cos, sin] = [Math.cos(theta), Math.sin(theta)];
  const pull = (10 * push + 0.05 * thetaDot ** 2 * sin) / 1.1;
  const thetaAcc = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - (0.1 * cos ** 2) / 1.1));
  const xAcc = pull - (0.05 * thetaAcc * cos) / 1.1;
  return [x + 0.02 * xDot, xDot + 0.02 * xAcc, theta + 0.02 * thetaDot, thetaDot + 0.02 * thetaAcc];
}

/** It fell by 12 degrees, or left the track. */
const isOver = ([x, , theta]: Cart) => Math.abs(x) > 2.4 || Math.abs(theta) > (12 * Math.PI) / 180;

/** What the agent is made with. Weights come along from the branch point, unless a run has some of its own. */
interface Config {
  readonly learning_rate: number;
  readonly weights: Cart;
}

/** A reflex that learns: it pushes to where the weighted sum leans; what brought it into more danger, it does less. */
class Reflex {
  #weights: Cart;
  readonly #rate: number;

  constructor(weights: Cart, rate: number) {
    this.#weights = weights;
    this.#rate = rate;
  }

  get weights(): Cart {
    return this.#weights;
  }

  push(seen: Cart): Push {
    return this.#weights.reduce((sum, weight, i) => sum + weight * (seen[i] ?? 0), 0) > 0 ? 1 : -1;
  }

  learn(before: Cart, push: Push, after: Cart): void {
    const danger = ([x, xDot, theta, thetaDot]: Cart) => Math.abs(theta + 0.3 * thetaDot + 0.02 * x + 0.04 * xDot);
    if (danger(after) <= danger(before)) return;
    const [a, b, c, d] = this.#weights;
    const shift = -this.#rate * push;
    this.#weights = [a + shift * before[0], b + shift * before[1], c + shift * before[2], d + shift * before[3]];
  }
}

// A step keeps what was seen, and two states to go on from: the world, and what the agent has learnt. JSON keeps every
// bit of a number.
const toState = (name: string, numbers: Cart) => ({
  name,
  data: new TextEncoder().encode(JSON.stringify(numbers)),
  mediaType: 'application/json',
});
const fromState = (bytes: Uint8Array | undefined) => JSON.parse(new TextDecoder().decode(bytes)) as Cart;
const checkpoint = (cart: Cart, weights: Cart) => ({
  observations: [{ type: 'cartpole', content: { json: JSON.stringify(cart) } }],
  states: [toState('env', cart), toState('agent', weights)],
});

/** Plays a run on from wherever its trajectory ends, up to a step or until the pole falls, and completes it. */
async function play(client: AnabranchClient, run: Run, until: bigint): Promise<void> {
  const { step } = await client.trajectories.getCheckpoint({ trajectoryId: run.mainTrajectoryId });
  const state = (name: string) => fromState(step?.states.find((each) => each.name === name)?.data);
  const config = JSON.parse(run.configJson) as Config;
  const own = JSON.parse(run.configOverridesJson || '{}') as Partial<Config>;
  const agent = new Reflex(own.weights ?? state('agent'), config.learning_rate);

  await using writer = await openWriter(client, { trajectoryId: run.mainTrajectoryId });
  await using metrics = openMetricLogger(client, { runId: run.id });
  let cart = state('env');
  while (writer.nextStepNumber <= until && !isOver(cart)) {
    const push = agent.push(cart);
    const next = moved(cart, push);
    agent.learn(cart, push, next);
    cart = next;
    metrics.log('angle', writer.nextStepNumber, cart[2]);
    metrics.log('weights/theta_dot', writer.nextStepNumber, agent.weights[3]);
    void writer.append({
      ...checkpoint(cart, agent.weights),
      actions: [{ type: 'push', content: { json: String(push) } }],
      reward: 1,
      terminated: isOver(cart),
    });
  }
  await metrics.flush(); // before the run says that it is done
  await end(client, run, writer, isOver(cart));
}

async function end(client: AnabranchClient, run: Run, writer: TrajectoryWriter, fell: boolean): Promise<void> {
  const steps = writer.nextStepNumber - 1n;
  const message = fell ? `fell at step ${steps}` : `balanced for ${steps} steps`;
  await writer.seal(fell ? Status.FAILED : Status.COMPLETED, message);
  // The run did what it was to do, also where the pole fell: that is a result.
  await client.runs.completeRun({ runId: run.id, message, resultJson: JSON.stringify({ steps: Number(steps), fell }) });
  console.log(`${run.name}: ${message}`);
}

function present<T>(answered: T | undefined): T {
  if (answered === undefined) throw new Error('the server left out what it was asked for');
  return answered;
}

const client = connectClient({ address: process.argv[2] ?? '127.0.0.1:50051' });

// The experiment: the environment, the agent, and the config that every run of it begins from.
const START: Cart = [0.03, -0.02, 0.04, 0.01];
const DEFAULTS: Config = { learning_rate: 0.01, weights: [0, 0, 1, 0] };
const experiment = present(
  (
    await client.runs.createExperiment({
      name: `CartPole ${new Date().toISOString()}`,
      environmentName: 'CartPole-v1',
      environmentConfigJson: JSON.stringify({ start: START }),
      agentType: 'reflex',
      defaultConfigJson: JSON.stringify(DEFAULTS),
      maxSteps: 500n,
      tags: ['example'],
    })
  ).experiment,
);
console.log(`experiment ${experiment.name}`);

// The main run, its trajectory and the root of that: one call, one transaction.
const created = await client.runs.createRun({
  experimentId: experiment.id,
  name: 'main',
  mainTrajectory: { root: { stepNumber: 0n, ...checkpoint(START, DEFAULTS.weights) }, taskId: 'CartPole-v1' },
  initialStatus: Status.RUNNING,
});
const main = present(created.run);
await play(client, main, 200n);

// Three branches from step 200: they share 201 steps with the main run, and what its agent had learnt by then. They run
// at the same time.
const variants: Record<string, Partial<Config>> = {
  'faster learner': { learning_rate: 0.1 },
  'learns no more': { learning_rate: 0 },
  'other gains': { learning_rate: 0, weights: [1, 1, 1, 1] },
};
const branches = await Promise.all(
  Object.entries(variants).map(async ([name, overrides]) => {
    const branched = await client.runs.branchRun({
      runId: main.id,
      stepNumber: 200n,
      name,
      configOverridesJson: JSON.stringify(overrides),
      initialStatus: Status.RUNNING,
    });
    const run = present(branched.run); // its configJson is the effective one: the experiment's ⊕ main's ⊕ its own
    await play(client, run, 500n);
    return run;
  }),
);

console.log('\ncompared with main');
const runIds = [main.id, ...branches.map(({ id }) => id)];
const { comparisons } = await client.runs.compareRuns({ runIds });
for (const [i, { configDifferences, trajectories }] of comparisons.entries()) {
  const config = configDifferences.map(
    ({ path, valueJson, otherValueJson }) => `${path} ${valueJson} → ${otherValueJson}`,
  );
  const { sharedSteps, firstDifference, rewardDifference } = present(trajectories);
  console.log(
    `${branches[i]?.name}: ${config.join(', ')}; shares ${sharedSteps} steps, differs from step ${firstDifference?.stepNumber}, reward +${rewardDifference}`,
  );
}

console.log('\ntree');
const { runs } = await client.runs.getRunTree({ runId: branches[0]?.id ?? '' }); // any run of it names the tree
for (const { name, parentId, branchPoint, nextStepNumber = 0n, rewardSum } of runs) {
  const parent = runs.find(({ id }) => id === parentId);
  const from = parent === undefined ? 'from the start' : `from ${parent.name} at step ${branchPoint}`;
  console.log(`${name}: ${from}, to step ${nextStepNumber - 1n}, reward ${rewardSum}`);
}

console.log('\nlineage');
for (const { name, mainTrajectoryId: trajectoryId } of branches) {
  const { segments } = await client.trajectories.getLineage({ trajectoryId });
  const stretches = segments.map((each) => `${each.startStepNumber}–${each.endStepNumber - 1n} of ${each.name}`);
  console.log(`${name}: ${stretches.join(', ')}`);
}
console.log(`\nrun ${main.id}`);
client.close();
