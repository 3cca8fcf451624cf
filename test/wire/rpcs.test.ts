import { readFileSync } from 'node:fs';
import {
  clearField,
  clone,
  create,
  type DescField,
  type DescMessage,
  type DescMethod,
  isFieldSet,
  type Message,
  type MessageShape,
  ScalarType,
} from '@bufbuild/protobuf';
import { type ReflectMessage, reflect } from '@bufbuild/protobuf/reflect';
import { Code, type ConnectError, type Interceptor, type Transport } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  RolloutResultSchema,
  RolloutSchema,
  TaskSchema,
  ValidatorSchema,
} from '../../gen/es/anabranch/v1/rollout_pb.js';
import {
  NewRolloutSchema,
  NewValidationSchema,
  RolloutService,
  TaskUpsertSchema,
  ValidatorUpsertSchema,
} from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { AnabranchError, type Reason } from '../../src/domain/errors.ts';
import { connectErrorOf } from '../../src/rpc/errors.ts';
import { NAMED } from '../../src/rpc/named_field.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { sharedValidator } from '../support/shared_validator.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { broken } from './rpcs/bounds.ts';
import {
  type AnyScene,
  call,
  casesOf,
  clientOf,
  framesOf,
  isRead,
  METHODS,
  newSceneOf,
  reasonOf,
  refusalOf,
  takesFrames,
  wholeSceneOf,
} from './rpcs/drive.ts';
import { makeRolloutScene, type RolloutScene } from './rpcs/rollout_scene.ts';
import { makeRunScene, type RunScene } from './rpcs/run_scene.ts';
import { makeScene, richStep, type Scene } from './rpcs/scene.ts';
import { expectShown, pathsOf } from './rpcs/shown.ts';
import { pathsWith, variants } from './rpcs/spots.ts';
import { collect } from './story.ts';

/**
 * Covers every RPC of all services by its descriptor: an RPC without cases fails here, and so does an uncovered field
 * or error.
 */

const MAX_INT64 = 2n ** 63n - 1n;

/** Errors that the comments of the services document once for all calls. */
const OF_EVERY_CALL = ['INVALID_REQUEST'];

/** Errors that no single request can cause, and the tests that prove them. */
const PROVEN_ELSEWHERE: Readonly<Record<string, string>> = {
  STORAGE_FULL: 'test/faults/disk-full.test.ts',
  SERVER_DRAINING: 'test/waiting/drain.test.ts',
  SQLITE_ONLY: 'test/wire/backup.test.ts',
  BACKUP_IN_PROGRESS: 'test/wire/backup.test.ts',
  MEMORY_FULL: 'test/listen/heap.test.ts',
  IMPORT_CONFLICT: 'test/store/import.test.ts',
  IMPORT_SUPERSEDED: 'test/store/import.test.ts',
  SLOW_READER: 'test/stream/read.test.ts',
  STATE_CORRUPT: 'test/service/state.test.ts',
  STATE_PRUNED: 'test/service/pruned_states.test.ts',
  STEP_CORRUPT: 'test/store/segments.test.ts',
  TRAJECTORY_DELETED: 'test/stream/read.test.ts',
  RUN_DELETED: 'test/stream/watch.test.ts',
  BRANCH_TOO_DEEP: 'test/wire/branch_depth.test.ts',
};

/**
 * Errors that nothing causes yet: a branch belongs where its source does, so nothing outside an experiment branches off
 * it.
 */
const NOT_YET: Readonly<Record<string, readonly string[]>> = { DeleteExperiment: ['HAS_BRANCHES'] };

/** RPCs that Postgres refuses: test/wire/backup.test.ts. */
const SQLITE_ONLY = ['BackupDatabase', 'VacuumDatabase'];

/** Numbers that may have any value. */
const ANY_NUMBER = /(^|\.)(seed|batch|metric_step|start_metric_step)$/;

/** Methods that store the fields of their request in a resource, which is the first field of their answer. */
const STORES =
  /^((Create|Update)(?!Rollouts)|GetOrCreate|Upsert(Group|Environment)|Branch(?!Trajectories)|RecordValidation|OverrideValidation|SetTag|SetRetentionPolicy)/;

/** Fields of updates that another message than the resource shows. */
const SHOWN_ELSEWHERE = ['environment_ids'];

/** Without this field the request is refused before its request id is checked. */
const REQUIRED: Readonly<Record<string, readonly string[]>> = {
  BranchTrajectoryRequest: ['trajectory_id', 'step_number', 'tag'],
  BranchTrajectoriesRequest: ['task_id', 'branch_task_id'],
  CreateTrajectoryRequest: ['trajectory_id'], // with if_exists
  CreateExperimentRequest: ['name'],
  CreateRunRequest: ['name'], // with if_exists
  BranchRunRequest: ['run_id', 'step_number', 'tag'],
  ClaimRolloutsRequest: ['worker_id'],
  CreateRolloutsRequest: ['stage_id', 'rollouts'],
};

function isRequired({ name, parent }: DescField): boolean {
  return REQUIRED[parent.name]?.includes(name) ?? false;
}

/** The reasons that the comment of each RPC documents. */
function documentedErrors(): Map<string, string[]> {
  const documented = new Map<string, string[]>();
  for (const file of [
    'trajectory_service',
    'state_service',
    'run_service',
    'rollout_service',
    'retention_service',
    'admin_service',
    'server_service',
  ]) {
    const text = readFileSync(`proto/anabranch/v1/${file}.proto`, 'utf8');
    for (const [, comment, name] of text.matchAll(/((?: {2}\/\/.*\n)+) {2}rpc (\w+)/g)) {
      const told = /Errors: ([^.]*)\./.exec(comment!.replace(/\n {2}\/\//g, ' '))?.[1] ?? '';
      documented.set(name!, told.match(/[A-Z_]{4,}/g) ?? []);
    }
  }
  return documented;
}

/** Reads whose requests need something that the scene does not have. */
const PREPARED = [
  'ListExperiments',
  'ListKeys',
  'ListRetentionPolicies',
  'ListStatusChanges',
  'ListTags',
  'ListTasks',
  'ListValidationOverrides',
  'ReadRollouts',
  'Summarize',
  'Watch',
];

/** As an operator does, who ends the sessions that began before. It returns when they have ended. */
async function makeReadOnly({ url, adminUrl }: TestDatabase): Promise<void> {
  const admin = new pg.Client(adminUrl);
  await admin.connect();
  await admin.query(`alter database ${new URL(url).pathname.slice(1)} set default_transaction_read_only = on`);
  await admin.query(
    `select pg_terminate_backend(pid, 60000) from pg_stat_activity
     where datname = current_database() and pid <> pg_backend_pid()`,
  );
  await admin.end();
}

/** Fails every call that may write, before it is sent. */
const onlyReads: Interceptor = (next) => async (request) => {
  if (isRead(request.method)) return next(request);
  throw new Error(`${request.method.name} may write, but the scene is shared: add the read that needs it to PREPARED`);
};

/** Whether a message can hold an int64, in itself or in a message in it. */
function holdsInt64(schema: DescMessage, above: readonly DescMessage[] = []): boolean {
  return schema.fields.some((field) => {
    if (field.fieldKind === 'map' && field.mapKey === ScalarType.INT64) return true;
    if (field.scalar === ScalarType.INT64) return true;
    return (
      field.message !== undefined && !above.includes(field.message) && holdsInt64(field.message, [...above, schema])
    );
  });
}

function setFields(method: DescMethod, request: Message): DescField[] {
  return method.input.fields.filter((field) => reflect(method.input, request).isSet(field));
}

/** Fields of messages in requests that only the server sets. */
const SET_BY_THE_SERVER = [
  'anabranch.v1.Content.pruned_time',
  'anabranch.v1.Content.size',
  'anabranch.v1.Step.commit_time',
  'anabranch.v1.Step.reward_sum',
  'anabranch.v1.Step.writer_epoch',
  'anabranch.v1.StepState.attach_time',
  'anabranch.v1.StepState.pruned_time',
  'anabranch.v1.StepState.size',
];

/** Names of the fields of the messages in a request. */
function* nestedFields(input: DescMessage): Generator<string> {
  for (const { message } of input.fields) {
    if (message === undefined || !message.typeName.startsWith('anabranch.')) continue;
    for (const field of message.fields) yield `${message.typeName}.${field.name}`;
    yield* nestedFields(message);
  }
}

/** Adds the names of the fields that are set in a message and in the messages in it. */
function noteSetFields(schema: DescMessage, message: Message, set: Set<string>): void {
  const reflected = reflect(schema, message);
  for (const field of schema.fields) {
    if (!reflected.isSet(field)) continue;
    set.add(`${schema.typeName}.${field.name}`);
    if (field.message === undefined) continue;
    if (field.fieldKind === 'message') noteSetFields(field.message, reflected.get(field).message, set);
    else {
      const parts =
        field.fieldKind === 'list' ? reflected.get(field) : [...reflected.get(field)].map(([, part]) => part);
      for (const part of parts) noteSetFields(field.message, (part as ReflectMessage).message, set);
    }
  }
}

/** Expects that the resource in an answer shows what the request set: all fields that an update changes. */
function expectStored({ input, output }: DescMethod, request: Message, answer: Message): void {
  const field = output.fields[0];
  if (field?.fieldKind !== 'message') throw new Error(`${output} does not begin with a resource`);
  const resource = reflect(output, answer).get(field).message;
  const shown = expectShown([input, request], [field.message, resource]);
  expect([...shown, ...SHOWN_ELSEWHERE]).toEqual(expect.arrayContaining(pathsOf(input)));
  const given = input.fields.find(({ name }) => name === field.name);
  if (given?.fieldKind !== 'message') return;
  expectShown([given.message, reflect(input, request).get(given).message], [field.message, resource]);
}

describe.each(ENGINES)('every RPC, on %s', (engine) => {
  let server: TestServer;
  let transport: Transport;
  /**
   * For requests that are refused before they have an effect: one scene serves all of them, and is unchanged at the
   * end.
   */
  let untouched: Scene;
  let untouchedRun: RunScene;
  let untouchedRollout: RolloutScene;
  /** For what never writes: reads, and requests that are refused as they are. Its client cannot write. */
  let shared: readonly [Scene, RunScene, RolloutScene];
  const scene = (): Promise<Scene> => makeScene(clientOf(transport));
  const sharedOf = ({ parent }: DescMethod): AnyScene => {
    const [ofTrajectories, ofRuns, ofRollouts] = shared;
    if (parent.typeName === RolloutService.typeName) return ofRollouts;
    return parent.typeName === RunService.typeName ? ofRuns : ofTrajectories;
  };
  /** The scene for the requests of a method. */
  const sceneOf = async (method: DescMethod): Promise<AnyScene> => {
    if (isRead(method) && !PREPARED.includes(method.name)) return sharedOf(method);
    return newSceneOf(method, clientOf(transport));
  };
  const untouchedOf = ({ parent }: DescMethod): AnyScene => {
    if (parent.typeName === RolloutService.typeName) return untouchedRollout;
    return parent.typeName === RunService.typeName ? untouchedRun : untouched;
  };

  beforeAll(async () => {
    server = await startTestServer({ engine });
    transport = createGrpcTransport({ baseUrl: server.url });
    untouched = await scene();
    untouchedRun = await makeRunScene(clientOf(transport));
    untouchedRollout = await makeRolloutScene(clientOf(transport));
    const reading = clientOf(createGrpcTransport({ baseUrl: server.url, interceptors: [onlyReads] }));
    shared = [
      { ...(await scene()), ...reading },
      { ...(await makeRunScene(clientOf(transport))), ...reading },
      { ...(await makeRolloutScene(clientOf(transport))), ...reading },
    ];
  });
  afterAll(async () => {
    const { trajectories, id } = untouched;
    expect((await trajectories.getTrajectory({ trajectoryId: id })).trajectory).toMatchObject({
      name: 'main',
      nextStepNumber: 4n,
      status: Status.RUNNING,
    });
    const { runs, runId } = untouchedRun;
    expect((await runs.getRun({ runId })).run).toMatchObject({ name: 'main', nextStepNumber: 4n, metrics: {} });
    await server.stop();
  });

  /**
   * A scene for two sets of calls of a method, and its requests: what creates something answers the same when it is
   * repeated under one request id.
   */
  const common = new Map<string, Promise<{ readonly on: AnyScene; readonly requests: Message[][] }>>();
  const commonOf = (method: DescMethod) => {
    const make = async () => {
      const on = await sceneOf(method);
      return { on, requests: await framesOf(method, on) };
    };
    const known = common.get(method.name) ?? make();
    common.set(method.name, known);
    return known;
  };

  const supported = METHODS.filter(({ name }) => engine === 'sqlite' || !SQLITE_ONLY.includes(name));

  it.each(supported)('$name accepts a request with every field set, and its answer shows them', async (method) => {
    const { on, requests } = await commonOf(method);
    const set = new Set<string>();
    let answers: Message[] = [];
    for (const frames of requests) {
      for (const frame of frames) {
        for (const { name } of setFields(method, frame)) set.add(name);
      }
      answers = await call(transport, method, frames);
      if (STORES.test(method.name)) expectStored(method, frames[0]!, answers[0]!);
    }
    casesOf(method).served(answers as MessageShape<DescMessage>[], on);
    expect([...set].sort()).toEqual(method.input.fields.map(({ name }) => name).sort());
  });

  it.runIf(engine === 'postgres')(
    'A10: on a read-only database, each read is answered, and each write fails with DATABASE_READ_ONLY',
    async () => {
      await using frozen = await startTestServer({ engine });
      const over = createGrpcTransport({ baseUrl: frozen.url });
      const on: readonly AnyScene[] = [
        await makeScene(clientOf(over)),
        await makeRunScene(clientOf(over)),
        await makeRolloutScene(clientOf(over)),
      ];
      const sceneFor = ({ parent }: DescMethod) =>
        on[[RunService.typeName, RolloutService.typeName].indexOf(parent.typeName) + 1]!;
      const requests: (readonly [DescMethod, Message[][]])[] = [];
      for (const method of supported) requests.push([method, await framesOf(method, sceneFor(method))]);
      await makeReadOnly(frozen.database);
      /** A call can still meet a connection whose session has ended: it is retried, as its error says. */
      const refusalAfterRetries = async (method: DescMethod, frames: Message[]) => {
        for (;;) {
          const refusal = await refusalOf(call(over, method, frames));
          if (refusal === undefined || reasonOf(refusal) !== 'DATABASE_UNAVAILABLE') return refusal;
        }
      };
      const refused = new Set<DescMethod>();
      for (const [method, sent] of requests) {
        for (const frames of sent) {
          const refusal = await refusalAfterRetries(method, frames);
          if (refusal === undefined) continue;
          refused.add(method);
          expect(reasonOf(refusal), `${method.name}: ${refusal.message}`).toBe('DATABASE_READ_ONLY');
          expect(refusal.rawMessage, method.name).toMatch(/Nothing was stored/);
          expect(refusal.findDetails(RetryInfoSchema), method.name).toHaveLength(1);
        }
      }
      const answered = supported.filter((method) => !refused.has(method));
      expect([...refused].filter(isRead)).toEqual([]);
      // These requests find nothing to store: test/store/read_only.test.ts has others.
      const idle = ['ImportArchive', 'ClaimRollouts'];
      expect(answered.filter((method) => !isRead(method)).map(({ name }) => name)).toEqual(idle);
    },
  );

  it('Get returns what CreateRollouts and UpsertTasks stored', async () => {
    const on = await makeRolloutScene(clientOf(transport));
    const { createRollouts, upsertTasks } = RolloutService.method;
    const sampleOf = async <Desc extends DescMethod>(method: Desc) =>
      (await framesOf(method, on))[0]![0]! as MessageShape<Desc['input']>;

    const creation = await sampleOf(createRollouts);
    const { rollouts } = await on.rollouts.createRollouts(creation);
    for (const [i, { rolloutId }] of rollouts.entries()) {
      const { rollout } = await on.rollouts.getRollout({ rolloutId });
      expectShown([NewRolloutSchema, creation.rollouts[i]!], [RolloutSchema, rollout!]);
    }
    const { tasks } = await sampleOf(upsertTasks);
    await on.rollouts.upsertTasks({ tasks });
    for (const sent of tasks) {
      const { task } = await on.rollouts.getTask({ taskId: sent.id });
      expectShown([TaskUpsertSchema, sent], [TaskSchema, task!]);
      for (const [type, validator] of Object.entries(sent.validators)) {
        expectShown([ValidatorUpsertSchema, validator], [ValidatorSchema, task!.validators[type]!]);
      }
    }
  });

  it('samples set every field of the messages in requests, so that a new field of any message needs a sample', async () => {
    const set = new Set<string>();
    for (const method of METHODS) {
      for (const frames of await framesOf(method, untouchedOf(method))) {
        for (const frame of frames) noteSetFields(method.input, frame, set);
      }
    }
    const missing = METHODS.flatMap(({ input }) => [...nestedFields(input)]).filter((name) => !set.has(name));
    expect([...new Set(missing)].sort()).toEqual(SET_BY_THE_SERVER);
  });

  it.each(METHODS)('FM6: $name refuses with each of the errors that its comment names', async (method) => {
    const documented = documentedErrors().get(method.name) ?? [];
    const asIs = Object.values(casesOf(method).refused(sharedOf(method))).every(
      (request) => typeof request !== 'function',
    );
    const refused = casesOf(method).refused(asIs ? sharedOf(method) : await wholeSceneOf(method, clientOf(transport)));
    const provoked = Object.keys(refused);
    expect([...provoked, ...Object.keys(PROVEN_ELSEWHERE), ...(NOT_YET[method.name] ?? [])]).toEqual(
      expect.arrayContaining(documented),
    );
    expect([...documented, ...OF_EVERY_CALL]).toEqual(expect.arrayContaining(provoked));
    for (const [reason, request] of Object.entries(refused)) {
      const frames = typeof request === 'function' ? await request() : request;
      const messages = frames.map((frame) => create(method.input, frame));
      const error = await refusalOf(call(transport, method, messages));
      expect(reasonOf(error), error?.message).toBe(reason);
      if (!takesFrames(method)) expectNamed(error!, reason as Reason, [method.input, messages[0]!]);
    }
  });

  // These requests are refused before the store. SQLite would store U+0000, and take every number.
  if (engine === 'sqlite') {
    it.each(METHODS)('W11: $name refuses U+0000 in every text field, and names the field', async (method) => {
      await expectRefused(method, (frames) => variants(method.input, frames, ScalarType.STRING, 'a\0b'));
    });

    it.each(METHODS)('$name refuses the smallest number in every number field, and names the field', async (method) => {
      const least = -MAX_INT64 - 1n;
      const changed = (frames: readonly Message[]) => variants(method.input, frames, ScalarType.INT64, least);
      await expectRefused(method, changed, (path) => ANY_NUMBER.test(path));
    });

    it.each(METHODS)(
      '$name refuses text that is not JSON in every field of JSON, and names the field',
      async (method) => {
        const changed = (frames: readonly Message[]) => variants(method.input, frames, ScalarType.STRING, '{');
        await expectRefused(method, changed, (path) => !/(_|\.)json$/.test(path));
      },
    );

    it.each(METHODS)('FM6: $name refuses the first value beyond each rule of a field, and names it', async (method) => {
      await expectRefused(method, (frames) => broken(method.input, frames));
    });
  }

  const NUMBERED = METHODS.filter(({ input }) => holdsInt64(input));

  it.each(NUMBERED)('$name handles the largest number in every number field', async (method) => {
    for (const request of await framesOf(method, await sceneOf(method))) {
      for (const { path, frames } of variants(method.input, request, ScalarType.INT64, MAX_INT64)) {
        const error = await refusalOf(call(transport, method, frames));
        expect([Code.Internal, Code.Unknown, Code.Unavailable], `${path}: ${error?.message}`).not.toContain(
          error?.code,
        );
      }
    }
  });

  const MAKING = METHODS.filter(({ input }) => input.fields.some(({ name }) => name === 'request_id'));

  it.each(MAKING)('ID1: $name distinguishes requests under one request id by every field', async (method) => {
    const requests = (await commonOf(method)).requests.map(([request]) => request!);
    const made = requests.find((request) => setFields(method, request).some(({ name }) => name === 'request_id'))!;
    await call(transport, method, [made]);
    await call(transport, method, [made]);
    for (const field of setFields(method, made)) {
      if (field.name === 'request_id' || isRequired(field)) continue;
      const other = clone(method.input, made);
      reflect(method.input, other).clear(field);
      const error = await refusalOf(call(transport, method, [other]));
      expect(reasonOf(error), `without ${field.name}`).toBe('REQUEST_ID_REUSED');
    }
    const others = [
      ...variants(method.input, [made], ScalarType.INT64, 1n),
      ...variants(method.input, [made], ScalarType.STRING, 'another'),
    ];
    for (const { path, frames } of others) {
      if (path !== 'step_number' && path !== 'name') continue;
      const error = await refusalOf(call(transport, method, frames));
      expect(reasonOf(error), `with another ${path}`).toBe('REQUEST_ID_REUSED');
    }
  });

  it('L5: CompleteRollout distinguishes repeated requests by every field of result and validations', async () => {
    const method = RolloutService.method.completeRollout;
    const [frames] = await framesOf(method, await makeRolloutScene(clientOf(transport)));
    const made = frames![0] as MessageShape<typeof method.input>;
    await call(transport, method, [made]);
    await call(transport, method, [made]);
    const partsOf = ({ result, validations }: typeof made): [DescMessage, Message][] => [
      [RolloutResultSchema, result!],
      [NewValidationSchema, validations[0]!],
    ];
    for (const [i, [schema, part]] of partsOf(made).entries()) {
      for (const field of schema.fields.filter((each) => isFieldSet(part, each))) {
        if (['name', 'success'].includes(field.name) && schema === NewValidationSchema) continue; // Required.
        const other = clone(method.input, made);
        clearField(partsOf(other)[i]![1], field);
        const error = await refusalOf(call(transport, method, [other]));
        expect(reasonOf(error), `without ${field}`).toBe('RESULT_CONFLICT');
      }
    }
  });

  it('FM7: Get and Read return everything by default, List only small fields', async () => {
    const { trajectories, id: trajectoryId, task } = await scene();
    await trajectories.appendStep({ trajectoryId, step: richStep(4n) });
    const [basic, full] = [{ view: View.BASIC }, { view: View.FULL }];
    const got = async (asked: object) => (await trajectories.getStep({ trajectoryId, stepNumber: 4n, ...asked })).step;
    const read = async (asked: object) => {
      const answers = await collect(trajectories.readSteps({ trajectoryId, startStepNumber: 4n, ...asked }));
      return answers[0]?.steps[0];
    };
    const listed = async (asked: object) => {
      const { steps } = await trajectories.listSteps({ trajectoryId, descending: true, pageSize: 1, ...asked });
      return steps[0]?.step;
    };
    const small = {
      actions: [],
      observations: [],
      infoJson: '',
      metadataJson: '',
      reward: 0.5,
      metrics: { value: 1.5 },
    };
    const { infoJson, metadataJson } = richStep(4n);
    for (const show of [got, read, listed]) {
      expect(await show(basic)).toMatchObject(small);
      const whole = await show(full);
      expect(whole).toMatchObject({ infoJson, metadataJson, reward: 0.5 });
      expect([whole?.actions.length, whole?.observations.length]).toEqual([3, 5]);
      expect(await show({})).toEqual(await show(show === listed ? basic : full));
    }
    const one = async (asked: object) => (await trajectories.getTrajectory({ trajectoryId, ...asked })).trajectory;
    const many = async (asked: object) => {
      return (await trajectories.listTrajectories({ taskId: task, rootsOnly: true, ...asked })).trajectories[0];
    };
    for (const show of [one, many]) {
      expect(await show(basic)).toMatchObject({ metadataJson: '', labels: { label: 'value' } });
      expect(await show(full)).toMatchObject({ metadataJson: '{"seed":1}' });
      expect(await show({})).toEqual(await show(show === many ? basic : full));
    }
  });

  /** Expects that the error names a field of the request that holds what it is about, if there is one. */
  function expectNamed(error: ConnectError, reason: Reason, [schema, request]: [DescMessage, Message]): void {
    const key = NAMED[reason]?.key;
    const value = key === undefined ? undefined : error.findDetails(ErrorInfoSchema)[0]?.metadata[key];
    if (value === undefined) return;
    const holders = pathsWith(schema, request, value);
    const named = error.findDetails(BadRequestSchema)[0]?.fieldViolations.map(({ field }) => field) ?? [];
    expect(named, `${reason}: ${value}`).toHaveLength(Math.min(1, holders.length));
    expect(holders).toEqual(expect.arrayContaining(named));
  }

  /**
   * Expects that each changed request is refused, and that the error names the field that was changed. The service
   * validates a request before it does anything else: the first one is sent, and so are those that pass the validator
   * and are checked later. The others are validated here.
   */
  async function expectRefused(
    method: DescMethod,
    changed: (frames: readonly Message[]) => Iterable<{ path: string; frames: Message[] }>,
    isFree: (path: string) => boolean = () => false,
  ): Promise<void> {
    let isSent = false;
    for (const request of await framesOf(method, untouchedOf(method))) {
      for (const { path, frames } of changed(request)) {
        if (isFree(path)) continue;
        const error = isSent ? invalidRequest(method, frames) : undefined;
        isSent = true;
        expectInvalid(error ?? (await refusalOf(call(transport, method, frames))), path);
      }
    }
  }

  function expectInvalid(error: ConnectError | undefined, path: string): void {
    expect(error?.code, `${path}: ${error?.message ?? 'was taken'}`).toBe(Code.InvalidArgument);
    const fields = error!.findDetails(BadRequestSchema).flatMap((details) => details.fieldViolations);
    expect(
      fields.some(({ field }) => field !== '' && (path.startsWith(field) || field.startsWith(path))),
      `${path}: names ${fields.map(({ field }) => field).join(', ')}: ${error?.message}`,
    ).toBe(true);
  }
});

/** Returns the error with which the validator refuses a request; undefined if it does not, or never sees this one. */
function invalidRequest(method: DescMethod, [request]: readonly Message[]): ConnectError | undefined {
  if (takesFrames(method)) return undefined;
  try {
    sharedValidator().check(method.input, request!);
    return undefined;
  } catch (error) {
    if (error instanceof AnabranchError) return connectErrorOf(error, 'write');
    throw error;
  }
}
