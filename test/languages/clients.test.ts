import { createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, inject, it } from 'vitest';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { PUT_STATE } from '../wire/samples.ts';
import { branchTwice, expectStory, putState, type WireClient, type Written, writeOverStream } from '../wire/story.ts';
import { run } from './run.ts';
import { PYTHON, PYTHON_PATH, PYTHON_STORY } from './tools.ts';

/**
 * Programs in other languages that write the sample story of test/wire/story.ts by themselves. Each ends with an error
 * if a value differs from what was sent.
 */
const LANGUAGES = [
  {
    language: 'Python',
    tell: (args: string[]) =>
      run(PYTHON, [PYTHON_STORY, ...args], { env: { PYTHONPATH: PYTHON_PATH, PYTHONUTF8: '1' } }),
  },
  { language: 'Go', tell: (args: string[]) => run(inject('goClient'), args) },
];

let server: TestServer;
let typescript: WireClient;
const written = new Map<string, Written>();

beforeAll(async () => {
  server = await startTestServer({ engine: 'sqlite' });
  const transport = createGrpcTransport({ baseUrl: server.url });
  typescript = {
    trajectories: createClient(TrajectoryService, transport),
    states: createClient(StateService, transport),
    runs: createClient(RunService, transport),
    rollouts: createClient(RolloutService, transport),
  };
  await putState(typescript, PUT_STATE);
  written.set('TypeScript', await branchTwice(typescript, await writeOverStream(typescript)));
});
afterAll(() => server.stop());

function address(): string {
  return `${server.host}:${server.port}`;
}

function ids({ trajectoryId, branchId, leafId }: Written): string[] {
  return [trajectoryId, branchId, leafId];
}

describe.each(LANGUAGES)('a generated client in $language', ({ language, tell }) => {
  it('W1, W2, W4, FM8, B1: appends over the stream, is cut off, takes over, loses no step, and branches', async () => {
    const story = JSON.parse(await tell(['write', address()])) as Written;
    written.set(language, story);
  });

  it('O1, W11: TypeScript reads unchanged what it wrote', async () => {
    await expectStory(typescript, written.get(language)!);
  });

  it('O1, W11, RD3, S5: it reads unchanged, across branch points, what TypeScript wrote', async () => {
    await tell(['read', address(), ...ids(written.get('TypeScript')!)]);
  });
});

describe('every language', () => {
  it.each(LANGUAGES)('O1: $language reads unchanged what all the others wrote', async ({ tell }) => {
    for (const story of written.values()) await tell(['read', address(), ...ids(story)]);
  });
});
