/**
 * Streams an episode step by step, stops in the middle as a crash would, goes on where the store says, and reads it all
 * back.
 *
 *     npm start                                 # the server, in another terminal
 *     npx node examples/stream-steps.ts         # or with another ADDRESS: … stream-steps.ts 127.0.0.1:50051
 */
import process from 'node:process';
import { Status } from '../gen/es/anabranch/v1/status_pb.js';
// In a project of your own: from 'anabranch/client' and 'anabranch/gen/anabranch/v1/status_pb'.
import { type AnabranchClient, connectClient, openWriter, readSteps } from '../src/client/index.ts';

/** The environment: a walk along a line. Its state is its place, as text. */
const walk = (x: number, action: 'left' | 'right') => x + (action === 'right' ? 1 : -1);
const toState = (x: number) => new TextEncoder().encode(`x=${x}`);
const fromState = (state: Uint8Array) => Number(new TextDecoder().decode(state).slice('x='.length));

/** Takes steps until the episode has so many, from wherever the trajectory ends. */
async function takeSteps(client: AnabranchClient, trajectoryId: string, until: bigint): Promise<void> {
  await using writer = await openWriter(client, { trajectoryId });
  // Whoever wrote the steps before, this process or one that died: the store knows where to go on, and with which
  // state.
  const { step: last } = await client.trajectories.getCheckpoint({ trajectoryId });
  let x = fromState(last?.states[0]?.data ?? toState(0));
  console.log(`going on at step ${writer.nextStepNumber} with x = ${x}`);
  while (writer.nextStepNumber < until) {
    const action = x < 5 ? 'right' : 'left';
    x = walk(x, action);
    const { stepNumber } = await writer.append({
      actions: [{ type: 'move', content: { text: action } }],
      observations: [{ type: 'place', content: { json: `[${x}]` } }],
      reward: x,
      states: { env: toState(x) },
    });
    console.log(`step ${stepNumber} is durable`);
  }
}

const client = connectClient({ address: process.argv[2] ?? '127.0.0.1:50051' });

const trajectoryId = crypto.randomUUID();
await client.trajectories.createTrajectory({
  trajectoryId,
  name: 'a walk',
  // Step 0 is what reset() gave: an observation and a state, and no action.
  root: { observations: [{ type: 'place', content: { json: '[0]' } }], states: [{ data: toState(0) }] },
});

await takeSteps(client, trajectoryId, 4n);
await takeSteps(client, trajectoryId, 8n); // as another process would, after the first one died
const writer = await openWriter(client, { trajectoryId });
await writer.seal(Status.COMPLETED, 'eight steps');
await writer.close();

for await (const { step } of readSteps(client, { trajectoryId })) {
  console.log(
    `${step.stepNumber}: ${step.actions[0]?.content?.text ?? 'reset'} → ${step.observations[0]?.content?.json}`,
  );
}
console.log(`trajectory ${trajectoryId}`);
client.close();
