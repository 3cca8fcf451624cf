// A user program with anabranch/client, for Node 20. Prints one JSON object per line; the last one summarises the run.
// It waits for a line on its standard input before its second step: by then the test has killed the server.
import { createInterface } from 'node:readline';
import {
  connectClient,
  downloadState,
  errorMetadata,
  openMetricLogger,
  openWriter,
  parseStepReference,
  readSteps,
  reasonOf,
  resolveStep,
  uploadState,
  watchRun,
} from 'anabranch/client';
import { Status } from 'anabranch/gen/anabranch/v1/status_pb';

const client = connectClient({ address: process.argv[2] });
const tell = (line) =>
  console.log(JSON.stringify(line, (_, value) => (typeof value === 'bigint' ? Number(value) : value)));
const text = (bytes) => new TextDecoder().decode(bytes);
const step = (n) => ({ reward: n, states: { env: new TextEncoder().encode(`state ${n}`) } });

const created = await client.runs.createRun({ initialStatus: Status.RUNNING, mainTrajectory: {} });
const { id: runId, mainTrajectoryId: trajectoryId } = created.run;

const followed = [];
const following = (async () => {
  for await (const { step } of readSteps(client, { trajectoryId, follow: true })) followed.push(step.stepNumber);
})();

const crash = new AbortController();
const first = await openWriter(client, { trajectoryId, signal: crash.signal });
await first.append(step(0));
tell({ event: 'written' });
for await (const _ of createInterface(process.stdin)) break;
await first.append(step(1));
await first.append(step(2));
crash.abort(new Error('this writer crashes'));

// A restart of the program: it continues from the last checkpoint.
const { step: checkpoint } = await client.trajectories.getCheckpoint({ trajectoryId });
const second = await openWriter(client, { trajectoryId });
const continuedAt = second.nextStepNumber;
await second.append(step(3));
await second.seal(Status.COMPLETED);
await second.close();
await following;

const large = new Uint8Array(1024 * 1024).fill(7);
const digest = await uploadState(client, large);
const downloaded = await downloadState(client, digest);
const ofStep = await downloadState(client, { trajectoryId, stepNumber: 1n });

await client.trajectories.setTag({ trajectoryId, name: 'best', stepNumber: 2n });
const tagged = await resolveStep(client, parseStepReference(`${trajectoryId}@best`));

const metrics = openMetricLogger(client, { runId });
metrics.log('loss', 1n, 0.5);
await metrics.close();

const watched = [];
for await (const { run } of watchRun(client, { runId, untilTerminal: true })) {
  if (watched.length === 0) await client.runs.completeRun({ runId });
  watched.push(Status[run.status]);
}

const gap = await client.trajectories.getStep({ trajectoryId, stepNumber: 9n }).catch((error) => error);
tell({
  event: 'done',
  node: process.versions.node,
  followed,
  checkpoint: text(checkpoint.states[0].data),
  continuedAt,
  downloaded: Buffer.from(downloaded).equals(large) && text(ofStep) === 'state 1',
  tagged,
  watched: [watched[0], watched.at(-1)],
  refused: reasonOf(gap),
  refusedWith: errorMetadata(gap),
});
client.close();
