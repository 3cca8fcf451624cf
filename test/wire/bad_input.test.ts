import { randomUUID } from 'node:crypto';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { type Client, Code, ConnectError, createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { IfExists, type StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AppendStepsRequestSchema, TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { ErrorInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { AppendCall } from './append-call.ts';
import { type BadCall, Bystander, expectRefused, INVALID } from './bad_call.ts';
import { collect } from './story.ts';

/**
 * Bad input gets a clear error (code, reason, field), loses no data, and does not affect other streams of its
 * connection. A bystander appends on the one connection of these tests after each case.
 */

type StepInit = MessageInitShape<typeof StepSchema>;
type Frame = MessageInitShape<typeof AppendStepsRequestSchema>;

interface Scene {
  readonly trajectories: Client<typeof TrajectoryService>;
  readonly states: Client<typeof StateService>;
  /** A trajectory with step 0 only. */
  readonly id: string;
}

const NOBODY = '00000000-0000-4000-8000-000000000000';
const ZERO_DIGEST = '0'.repeat(64);

/** Sends frames on a new stream, opened first unless the frames do so, and waits for its end. */
async function stream({ trajectories, id }: Scene, frames: readonly Frame[], opened = true): Promise<void> {
  const call = new AppendCall(trajectories);
  if (opened) call.send({ open: { trajectoryId: id, writerId: randomUUID() } });
  for (const frame of frames) call.send(frame);
  await call.close();
}

const steps =
  (...list: StepInit[]) =>
  (scene: Scene) =>
    stream(scene, [{ steps: list }]);
const text = (value: string): StepInit => ({ stepNumber: 1n, observations: [{ content: { text: value } }] });

async function sealed(scene: Scene): Promise<Scene> {
  const { id } = scene;
  await scene.trajectories.sealTrajectory({ trajectoryId: id, seal: { status: Status.COMPLETED, message: 'done' } });
  return scene;
}

/** Media types that would break a header. */
const BAD_MEDIA_TYPES = [
  'text/plain\r\nx: y',
  'a\rb',
  'a\n',
  '\nb',
  'a\tb',
  'a\u001bb',
  'a\u007fb',
  'a\u0085b',
  'é/x',
  '中',
];

const withMediaType = (mediaType: string): readonly BadCall<Scene>[] => {
  const state = { data: new Uint8Array(1), mediaType };
  const content = { data: new Uint8Array(1), mediaType };
  const what = (place: string) => `media type ${JSON.stringify(mediaType)} ${place}`;
  return [
    {
      what: what('of a state'),
      call: steps({ stepNumber: 1n, states: [state] }),
      ...INVALID,
      field: 'steps[0].states[0].media_type',
    },
    {
      what: what('of a state that is stored'),
      call: steps({ stepNumber: 1n, states: [{ digest: ZERO_DIGEST, mediaType }] }),
      ...INVALID,
      field: 'steps[0].states[0].media_type',
    },
    {
      what: what('of an observation'),
      call: steps({ stepNumber: 1n, observations: [{ content }] }),
      ...INVALID,
      field: 'steps[0].observations[0].content.media_type',
    },
    {
      what: what('of a URI of an action'),
      call: steps({ stepNumber: 1n, actions: [{ content: { uri: 'x', mediaType } }] }),
      ...INVALID,
      field: 'steps[0].actions[0].content.media_type',
    },
    {
      what: what('in AppendStep'),
      call: ({ trajectories, id }) =>
        trajectories.appendStep({ trajectoryId: id, step: { stepNumber: 1n, states: [state] } }),
      ...INVALID,
      field: 'step.states[0].media_type',
    },
    {
      what: what('of the root'),
      call: ({ trajectories }) => trajectories.createTrajectory({ root: { states: [state] } }),
      ...INVALID,
      field: 'root.states[0].media_type',
    },
    {
      what: what('in AttachState'),
      call: ({ trajectories, id }) => trajectories.attachState({ trajectoryId: id, stepNumber: 0n, state }),
      ...INVALID,
      field: 'state.media_type',
    },
  ];
};

const CASES: readonly BadCall<Scene>[] = [
  // Each media type in one place, and one in all places.
  ...BAD_MEDIA_TYPES.flatMap((mediaType) => withMediaType(mediaType).slice(0, mediaType === 'a\n' ? undefined : 1)),
  {
    what: 'RETURN_EXISTING without an id',
    call: ({ trajectories }) => trajectories.createTrajectory({ ifExists: IfExists.RETURN_EXISTING }),
    ...INVALID,
    field: 'trajectory_id',
  },
  { what: 'empty frame', call: (scene) => stream(scene, [{}]), ...INVALID, field: 'steps' },
  { what: 'no frame at all', call: (scene) => stream(scene, [], false), ...INVALID, field: 'open' },
  {
    what: 'steps before open',
    call: (scene) => stream(scene, [{ steps: [{ stepNumber: 1n }] }], false),
    ...INVALID,
    field: 'open',
  },
  {
    what: 'steps in the frame of open',
    call: (scene) =>
      stream(scene, [{ open: { trajectoryId: scene.id, writerId: 'w' }, steps: [{ stepNumber: 1n }] }], false),
    ...INVALID,
    field: 'open',
  },
  {
    what: 'second open',
    call: (scene) => stream(scene, [{ open: { trajectoryId: scene.id, writerId: 'w' } }]),
    ...INVALID,
    field: 'open',
  },
  ...(
    [
      ['without a request id', { requestId: '' }, {}, 'open.create.trajectory.request_id'],
      ['without an id', { trajectoryId: '' }, {}, 'open.create.trajectory.trajectory_id'],
      ['of another id', { trajectoryId: NOBODY }, {}, 'open.create.trajectory.trajectory_id'],
      ['with a uid', {}, { uid: NOBODY }, 'open.uid'],
      ['with if_exists', { ifExists: IfExists.FAIL }, {}, 'open.create.trajectory.if_exists'],
      ['with metadata that is no JSON', { metadataJson: '{' }, {}, 'open.create.trajectory.metadata_json'],
      ['with a root at 1', { root: { stepNumber: 1n } }, {}, 'open.create.trajectory.root.step_number'],
      ['with a root of bad JSON', { root: { infoJson: '{' } }, {}, 'open.create.trajectory.root.info_json'],
    ] as const
  ).map(([what, fields, open, field]) => ({
    what: `open that creates, ${what}`,
    call: ({ trajectories }: Scene) => {
      const trajectoryId = randomUUID();
      const trajectory = { trajectoryId, requestId: 'r', ...fields };
      return AppendCall.open(trajectories, { trajectoryId, writerId: 'w', create: { trajectory }, ...open });
    },
    ...INVALID,
    field,
  })),
  ...(
    [
      ['without a request id', { requestId: '' }, 'open.create.branch.request_id'],
      ['of another id', { branchId: NOBODY }, 'open.create.branch.branch_id'],
      ['at a step and a tag', { tag: 'best' }, 'open.create.branch'],
      ['at a tag that is no name', { stepNumber: undefined, tag: '1' }, 'open.create.branch.tag'],
    ] as const
  ).map(([what, fields, field]) => ({
    what: `open that branches, ${what}`,
    call: ({ trajectories, id }: Scene) => {
      const trajectoryId = randomUUID();
      const branch = { trajectoryId: id, branchId: trajectoryId, requestId: 'r', stepNumber: 0n, ...fields };
      return AppendCall.open(trajectories, { trajectoryId, writerId: 'w', create: { branch } });
    },
    ...INVALID,
    field,
  })),
  {
    what: 'open that creates nothing',
    call: ({ trajectories, id }) => AppendCall.open(trajectories, { trajectoryId: id, writerId: 'w', create: {} }),
    ...INVALID,
    field: 'open.create',
  },
  {
    what: 'a seal without a terminal status',
    call: (scene) => stream(scene, [{ seal: { status: Status.RUNNING } }]),
    ...INVALID,
    field: 'seal.status',
  },
  {
    what: 'no branch point',
    call: ({ trajectories, id }) => trajectories.branchTrajectory({ trajectoryId: id }),
    ...INVALID,
    field: 'step_number',
  },
  {
    what: 'range that ends before it starts',
    call: ({ trajectories, id }) =>
      collect(trajectories.readSteps({ trajectoryId: id, startStepNumber: 1n, endStepNumber: 0n })),
    ...INVALID,
    field: 'end_step_number',
  },
  {
    what: 'message above 1 MiB on a stream',
    call: steps(text('x'.repeat(LIMITS.messageBytes))),
    code: Code.ResourceExhausted,
    reason: 'MESSAGE_TOO_LARGE',
  },
  {
    what: 'message above 1 MiB',
    call: ({ trajectories, id }) =>
      trajectories.appendStep({ trajectoryId: id, step: text('x'.repeat(LIMITS.messageBytes)) }),
    code: Code.ResourceExhausted,
    reason: 'MESSAGE_TOO_LARGE',
  },
  {
    what: 'step that fits into a request but not into an answer',
    call: steps(text('x'.repeat(LIMITS.stepBytes))),
    ...INVALID,
    field: 'steps[0]',
  },
  {
    what: 'inline state over its limit',
    call: steps({ stepNumber: 1n, states: [{ data: new Uint8Array(LIMITS.inlineStateBytes + 1) }] }),
    ...INVALID,
    field: 'steps[0].states[0].data',
  },
  {
    what: 'digest that does not match',
    call: steps({ stepNumber: 1n, states: [{ data: new Uint8Array(3), digest: ZERO_DIGEST }] }),
    code: Code.InvalidArgument,
    reason: 'DIGEST_MISMATCH',
    metadata: { expected_digest: ZERO_DIGEST },
  },
  {
    what: 'put state without a frame',
    call: ({ states }) => states.putState(toStream([])),
    ...INVALID,
    field: 'chunk',
  },
  {
    what: 'put state with a digest in a later frame',
    call: ({ states }) => states.putState(toStream([{ chunk: new Uint8Array(1) }, { digest: ZERO_DIGEST }])),
    ...INVALID,
    field: 'digest',
  },
  {
    what: 'two states of one name, once by default',
    call: steps({ stepNumber: 1n, states: [{ data: new Uint8Array(1) }, { name: 'env', data: new Uint8Array(1) }] }),
    ...INVALID,
    field: 'steps[0].states',
  },
  {
    what: 'NaN as written by json.dumps of Python',
    call: steps({ stepNumber: 1n, infoJson: '{"episode": {"r": [1.5, NaN]}}' }),
    ...INVALID,
    field: 'steps[0].info_json',
    text: 'the value at /episode/r/1 is NaN, which JSON does not allow. Send null or the string "NaN" instead',
  },
  {
    what: 'content of two kinds',
    call: steps({ stepNumber: 1n, actions: [{ content: { text: 'a', json: '1' } }] }),
    ...INVALID,
    field: 'steps[0].actions[0].content',
  },
  {
    what: 'media type of text content, which cannot be stored',
    call: steps({ stepNumber: 1n, observations: [{}, { content: { text: 'a', mediaType: 'text/plain' } }] }),
    ...INVALID,
    field: 'steps[0].observations[1].content.media_type',
  },
  {
    what: 'media type of a tensor, which cannot be stored',
    call: steps({
      stepNumber: 1n,
      observations: [{ content: { tensor: { dtype: '|u1', data: new Uint8Array(1) }, mediaType: 'a/b' } }],
    }),
    ...INVALID,
    field: 'steps[0].observations[0].content.media_type',
  },
  {
    what: 'filter of a branch point without its parent',
    call: ({ trajectories }) => trajectories.listTrajectories({ branchPoint: 3n }),
    ...INVALID,
    field: 'parent_id',
  },
  {
    what: 'list of trajectories by run and without a run',
    call: ({ trajectories }) =>
      trajectories.listTrajectories({ withoutRun: true, runId: '0191c5a0-0000-7000-8000-0000000000bb' }),
    ...INVALID,
    field: 'without_run',
  },
  {
    what: 'update mask with another field',
    call: ({ trajectories, id }) =>
      trajectories.updateTrajectory({ trajectoryId: id, updateMask: { paths: ['status'] } }),
    ...INVALID,
    field: 'update_mask',
  },
  {
    what: 'root that is not step 0',
    call: ({ trajectories }) => trajectories.createTrajectory({ root: { stepNumber: 1n } }),
    ...INVALID,
    field: 'root.step_number',
  },
  {
    what: 'tag that does not start with a letter',
    call: ({ trajectories, id }) => trajectories.setTag({ trajectoryId: id, name: '1st', stepNumber: 0n }),
    ...INVALID,
    field: 'name',
  },
];

async function* toStream<T>(items: readonly T[]): AsyncGenerator<T> {
  yield* items;
}

describe.each(ENGINES)('bad input, on %s', (engine) => {
  let server: TestServer;
  let scene: Omit<Scene, 'id'>;
  let bystander: Bystander;

  beforeAll(async () => {
    server = await startTestServer({ engine });
    const transport = createGrpcTransport({ baseUrl: server.url });
    scene = { trajectories: createClient(TrajectoryService, transport), states: createClient(StateService, transport) };
    bystander = await Bystander.open(scene);
  });
  afterAll(async () => {
    await bystander.close();
    await server.stop();
  });

  let id: string;
  beforeEach(async () => {
    id = (await scene.trajectories.createTrajectory({ root: {} })).trajectory!.id;
  });

  it.each(CASES)('FM6: $what: $reason', async ({ call, ...wanted }) => {
    await expectRefused(call({ ...scene, id }), wanted);
    await bystander.goesOn();
    const { trajectory } = await scene.trajectories.getTrajectory({ trajectoryId: id });
    expect(trajectory?.nextStepNumber, 'nothing was stored, nothing was lost').toBe(1n);
    expect(server.counts().sessions, 'all on one connection').toBe(1);
  });

  it('W11: NaN, infinite and missing rewards are stored, and stay distinct', async () => {
    const rewards = [Number.NaN, Infinity, -Infinity, -0, 0, undefined];
    const call = (await AppendCall.open(scene.trajectories, { trajectoryId: id, writerId: 'w' })).call;
    call.send({
      steps: rewards.map((reward, i) =>
        reward === undefined ? { stepNumber: BigInt(i + 1) } : { stepNumber: BigInt(i + 1), reward },
      ),
    });
    await call.acked(7n);
    await call.close();
    const read = await collect(scene.trajectories.readSteps({ trajectoryId: id, startStepNumber: 1n }));
    expect(read.flatMap((message) => message.steps.map(({ reward }) => reward))).toEqual(rewards);
  });

  it('W3: steps sent before a refused frame are stored and acked before the error', async () => {
    const { call } = await AppendCall.open(scene.trajectories, { trajectoryId: id, writerId: 'w' });
    call.send({ steps: [{ stepNumber: 1n }] });
    call.send({ steps: [{ stepNumber: 2n, infoJson: '{' }] });
    call.send({ steps: [{ stepNumber: 2n }] });
    expect((await call.acked(2n)).nextStepNumber).toBe(2n);
    await expect(call.next()).rejects.toThrow(/info_json/);
    const { trajectory } = await scene.trajectories.getTrajectory({ trajectoryId: id });
    expect(trajectory?.nextStepNumber).toBe(2n);
  });

  it('W1: an append to a sealed trajectory is refused, although it may be opened', async () => {
    await sealed({ ...scene, id });
    const { call, opened } = await AppendCall.open(scene.trajectories, { trajectoryId: id, writerId: 'w' });
    expect(opened.status).toBe(Status.COMPLETED);
    call.send({ steps: [{ stepNumber: 0n }] });
    expect(await call.acked(1n)).toMatchObject({ duplicateSteps: 1n });
    call.send({ steps: [{ stepNumber: 1n }] });
    const error = ConnectError.from(await call.next().catch((thrown: unknown) => thrown));
    expect(error.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: 'TRAJECTORY_SEALED' }]);
  });
});
