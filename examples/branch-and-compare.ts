/**
 * Branches one trajectory into several that run at the same time from the same state, and compares what came of them.
 *
 *     npm start                                    # the server, in another terminal
 *     npx node examples/branch-and-compare.ts      # or with another ADDRESS: … branch-and-compare.ts 127.0.0.1:50051
 */
import process from 'node:process';
import { Status } from '../gen/es/anabranch/v1/status_pb.js';
// In a project of your own: from 'anabranch/client' and 'anabranch/gen/anabranch/v1/status_pb'.
import { type AnabranchClient, connectClient, openWriter } from '../src/client/index.ts';

/** The environment: savings that grow by a rate, from which some is spent every year. The reward is what was spent. */
interface Savings {
  readonly year: number;
  readonly money: number;
}
/** What an agent decides to spend. */
type Policy = (savings: Savings) => number;

const toState = (savings: Savings) => new TextEncoder().encode(JSON.stringify(savings));
const fromState = (state: Uint8Array) => JSON.parse(new TextDecoder().decode(state)) as Savings;

/** Plays to the end of a year, from the state at the trajectory's end, one checkpoint a step, and seals. */
async function play(client: AnabranchClient, trajectoryId: string, policy: Policy, until: number): Promise<void> {
  await using writer = await openWriter(client, { trajectoryId });
  const { step } = await client.trajectories.getCheckpoint({ trajectoryId });
  let savings = fromState(step?.states[0]?.data ?? new Uint8Array());
  while (savings.year < until) {
    const spent = policy(savings);
    savings = { year: savings.year + 1, money: Math.round((savings.money - spent) * 1.07) };
    await writer.append({
      actions: [{ type: 'spend', content: { json: String(spent) } }],
      observations: [{ type: 'savings', content: { json: String(savings.money) } }],
      reward: spent,
      states: { env: { data: toState(savings), mediaType: 'application/json' } },
    });
  }
  await writer.seal(Status.COMPLETED);
}

const client = connectClient({ address: process.argv[2] ?? '127.0.0.1:50051' });

const main = crypto.randomUUID();
const start = { year: 0, money: 1000 };
await client.trajectories.createTrajectory({
  trajectoryId: main,
  name: 'savings',
  root: { observations: [{ type: 'savings', content: { json: '1000' } }], states: [{ data: toState(start) }] },
});
await play(client, main, () => 50, 30);
await client.trajectories.setTag({ trajectoryId: main, name: 'midlife', stepNumber: 10n });

const policies: Record<string, Policy> = {
  frugal: () => 10,
  spender: ({ money }) => Math.round(money / 10),
  patient: ({ year, money }) => (year < 29 ? 0 : money),
};

// A branch costs one row, and a sealed trajectory can be branched, too. All three begin with the state of step 10 and
// run at the same time.
const branches = await Promise.all(
  Object.entries(policies).map(async ([name, policy]) => {
    const branchId = crypto.randomUUID();
    await client.trajectories.branchTrajectory({ trajectoryId: main, tag: 'midlife', branchId, name });
    await play(client, branchId, policy, 30);
    return { name, branchId };
  }),
);

for (const { name, branchId } of branches) {
  const { sharedSteps, firstDifference, rewardDifference } = await client.trajectories.compareTrajectories({
    trajectoryId: main,
    otherTrajectoryId: branchId,
  });
  const sign = rewardDifference > 0 ? '+' : '';
  console.log(
    `${name}: shares ${sharedSteps} steps, differs from step ${firstDifference?.stepNumber}, reward ${sign}${rewardDifference}`,
  );
}
console.log(`trajectory ${main}`);
client.close();
