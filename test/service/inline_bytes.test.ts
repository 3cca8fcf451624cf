import { randomBytes } from 'node:crypto';
import { create, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import type { Step } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  ListStepsResponseSchema,
  ReadStepsRequestSchema,
  type ReadStepsResponse,
  ReadStepsResponseSchema,
  ReadTrajectoriesRequestSchema,
  type ReadTrajectoriesResponse,
  ReadTrajectoriesResponseSchema,
  StepOrder,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { putState } from '../../src/service/state/state.ts';
import { readSteps, readTrajectories } from '../../src/service/trajectory/read.ts';
import { refusalOf } from '../store/scene.ts';
import { outsideSql } from '../store/sql.ts';
import { statementsOfWarm } from '../store/statement_count.ts';
import { callOf } from '../support/parts_call.ts';
import { sha256 } from '../support/steps.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { type AppScene, all, describeApp, state, step } from './on_app.ts';

interface Message {
  readonly blobs: readonly { readonly digest: string; readonly data: Uint8Array }[];
  readonly steps: readonly Step[];
}

async function* reading(
  { app, caller }: AppScene,
  init: MessageInitShape<typeof ReadTrajectoriesRequestSchema> = {},
): AsyncGenerator<ReadTrajectoriesResponse, void, undefined> {
  const request = create(ReadTrajectoriesRequestSchema, init);
  for await (const sent of readTrajectories.messages(request, callOf(app, caller))) {
    const message = sent.decode() as ReadTrajectoriesResponse;
    expect(toBinary(ReadTrajectoriesResponseSchema, message).length).toBeLessThanOrEqual(LIMITS.messageBytes);
    yield message;
  }
}

async function* readingSteps(
  { app, caller }: AppScene,
  init: MessageInitShape<typeof ReadStepsRequestSchema>,
  signal = app.call.signal,
): AsyncGenerator<ReadStepsResponse, void, undefined> {
  const request = create(ReadStepsRequestSchema, init);
  for await (const sent of readSteps.messages(request, { ...callOf(app, caller), signal })) {
    const message = sent.decode() as ReadStepsResponse;
    expect(toBinary(ReadStepsResponseSchema, message).length).toBeLessThanOrEqual(LIMITS.messageBytes);
    yield message;
  }
}

/** Digests and sizes of everything that a step names. */
function namedBy({ states, actions, observations }: Step): [string, number][] {
  const contents = [...actions, ...observations].flatMap(({ content }) => content ?? []);
  return [
    ...states.map(({ digest, size }): [string, number] => [digest, Number(size)]),
    ...contents.flatMap(({ stateDigest, size }): [string, number][] =>
      stateDigest ? [[stateDigest, Number(size)]] : [],
    ),
  ];
}

/** Checks that each state up to the size came once before its first step, with its bytes, and nothing else. */
function check(messages: readonly Message[], most: number): number {
  const sent = new Set<string>();
  const named = new Set<string>();
  for (const { blobs, steps } of messages) {
    expect(blobs.length === 0 || steps.length === 0).toBe(true);
    for (const { digest, data } of blobs) {
      expect(sha256(data)).toBe(digest);
      expect(data.length).toBeLessThanOrEqual(most);
      expect(sent.has(digest)).toBe(false);
      sent.add(digest);
    }
    for (const [digest, size] of steps.flatMap(namedBy)) {
      named.add(digest);
      expect(sent.has(digest), `state of ${size} bytes`).toBe(size <= most);
    }
  }
  expect([...sent].filter((digest) => !named.has(digest))).toEqual([]);
  return sent.size;
}

describeApp('inline_bytes', (on) => {
  async function put(scene: AppScene, bytes: Uint8Array): Promise<string> {
    const chunks = (async function* () {
      yield bytes;
    })();
    return (await putState(scene.app, scene.caller, { digest: undefined, chunks })).digest;
  }

  function pictured(stepNumber: bigint, digest: string, size: number, states: readonly ReturnType<typeof state>[]) {
    const content = { kind: 'state', digest, mediaType: 'image/png', size } as const;
    const observations = [{ type: 'screenshot', callId: '', isError: false, content }];
    return step(stepNumber, `step ${stepNumber}`, { observations, states: [...states] });
  }

  /** States of all kinds: small, stored as changes, uploaded, large, attached, of contents, empty and repeated. */
  async function createAll(scene: AppScene): Promise<string[]> {
    const ids: string[] = [];
    const shared = await put(scene, randomBytes(20_000));
    const large = await put(scene, randomBytes(300_000));
    for (let i = 0; i < 3; i += 1) {
      const made = await scene.create();
      const own = await put(scene, randomBytes(50_000));
      const env = (n: number) => state(Buffer.concat([randomBytes(8), Buffer.alloc(6_000, `env ${n}`)]));
      const steps = [0, 1, 2, 3, 4, 5].map((n) =>
        pictured(BigInt(n), n % 2 === 0 ? shared : own, n % 2 === 0 ? 20_000 : 50_000, [
          env(n),
          state(`small ${i} ${n}`, { name: 'memory' }),
          state('same', { name: 'same' }),
          state('', { name: 'empty' }),
          state(undefined, { digest: large, name: 'large' }),
        ]),
      );
      await scene.write(made, steps);
      for (const [name, data] of [
        ['late', 'attached'],
        ['later', 'x'.repeat(9_000)],
      ] as const) {
        const target = { trajectoryId: made.id, writerEpoch: 1n, stepNumber: 2n };
        await scene.rpc.attachState({ ...target, state: { name, data: Buffer.from(`${data} ${i}`) } });
      }
      ids.push(made.id);
    }
    const branch = await scene.branch({ id: ids[0]! }, 3n);
    await scene.write(branch, [step(4n, 'own', { states: [state('branch')] })]);
    return [...ids, branch.id];
  }

  it.each([1, 4_000, 10_000, 20_000, 262_144])(
    'RD7: ReadTrajectories returns states and contents of up to %i bytes before the steps that name them, each once',
    async (inlineBytes) => {
      const scene = on.scene();
      await createAll(scene);
      check(await all(reading(scene, { inlineBytes })), inlineBytes);
      const none = await all(reading(scene));
      expect(none.every(({ blobs }) => blobs.length === 0)).toBe(true);
    },
  );

  it('RD7: ReadSteps returns them too, of each range, and live to followers', async () => {
    const scene = on.scene();
    const ids = await createAll(scene);
    for (const trajectoryId of ids) {
      for (const startStepNumber of [0n, 3n]) {
        const messages = await all(readingSteps(scene, { trajectoryId, startStepNumber, inlineBytes: 100_000 }));
        expect(check(messages, 100_000)).toBeGreaterThan(3);
        let next = startStepNumber;
        for (const { blobs, steps, nextStepNumber } of messages) {
          if (blobs.length > 0) expect(nextStepNumber).toBe(next);
          next += BigInt(steps.length);
        }
      }
    }
    const gone = new AbortController();
    const [trajectoryId] = ids;
    const request = { trajectoryId: trajectoryId!, startStepNumber: 5n, follow: true };
    const with9 = readingSteps(scene, { ...request, inlineBytes: 9 }, gone.signal);
    const without = readingSteps(scene, request, gone.signal);
    const read = async (from: AsyncGenerator<ReadStepsResponse, void, undefined>, until: bigint) => {
      const found: ReadStepsResponse[] = [];
      while ((found.at(-1)?.nextStepNumber ?? 0n) < until) {
        const { value } = await from.next();
        if (value !== undefined) found.push(value);
      }
      return found;
    };
    const first = [await read(with9, 6n), await read(without, 6n)];
    await scene.write({ id: trajectoryId! }, [
      step(6n, 'live', { states: [state('live'), state('much longer', { name: 'l' })] }),
    ]);
    const second = [await read(with9, 7n), await read(without, 7n)];
    check([...first[0]!, ...second[0]!], 9);
    expect(second[0]!.flatMap(({ blobs }) => blobs.map(({ data }) => Buffer.from(data).toString()))).toEqual(['live']);
    expect([...first[1]!, ...second[1]!].flatMap(({ blobs }) => blobs)).toEqual([]);
    gone.abort();
  });

  it('RD7: the view BASIC leaves out contents, and so their bytes', async () => {
    const scene = on.scene();
    await createAll(scene);
    const messages = await all(reading(scene, { inlineBytes: 262_144, view: View.BASIC }));
    expect(check(messages, 262_144)).toBeGreaterThan(10);
    const sizes = messages.flatMap(({ blobs }) => blobs.map(({ data }) => data.length));
    expect(sizes).not.toContain(20_000);
  });

  it('RD6, RD7: a call continues after every message, also before the steps of sent blobs', async () => {
    const scene = on.scene();
    await createAll(scene);
    const request = { inlineBytes: 60_000 };
    const messages = await all(reading(scene, request));
    const steps = (of: readonly Message[]) =>
      of.flatMap((message) => message.steps.map(({ stepNumber }) => stepNumber));
    for (const [i, { resumeToken }] of messages.entries()) {
      const rest = await all(reading(scene, { ...request, resumeToken }));
      expect(steps([...messages.slice(0, i + 1), ...rest])).toEqual(steps(messages));
      check(rest, 60_000);
    }
  });

  it.each([StepOrder.NUMBER, StepOrder.TIME, StepOrder.REWARD])(
    'RD7: a page of ListSteps has the states that its steps name, and ends earlier so that they fit (order %s)',
    async (order) => {
      const scene = on.scene();
      const [trajectoryId] = await createAll(scene);
      for (const inlineBytes of [4_000, 60_000, 262_144]) {
        const request = { trajectoryId: trajectoryId!, order, view: View.FULL, inlineBytes, pageSize: 4 };
        const numbers: bigint[] = [];
        let pageToken = '';
        do {
          const { steps, blobs, nextPageToken } = await scene.rpc.listSteps({ ...request, pageToken });
          const listed = steps.map((owned) => owned.step!);
          check(
            [
              { blobs, steps: [] },
              { blobs: [], steps: listed },
            ],
            inlineBytes,
          );
          numbers.push(...listed.map(({ stepNumber }) => stepNumber));
          pageToken = nextPageToken;
        } while (pageToken !== '');
        expect(numbers.toSorted()).toEqual([0n, 1n, 2n, 3n, 4n, 5n]);
      }
    },
  );

  it('RD7: a page of ListSteps with large contents is at most 1 MiB, and has at least one step', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const contents = await Promise.all(Array.from({ length: 12 }, () => put(scene, randomBytes(250_000))));
    const observations = (of: readonly string[]) =>
      of.map((digest) => {
        const content = { kind: 'state', digest, mediaType: 'image/png', size: 250_000 } as const;
        return { type: 'screenshot', callId: '', isError: false, content };
      });
    await scene.write(made, [
      step(0n, 'two', { observations: observations(contents.slice(0, 2)) }),
      step(1n, 'one', { observations: observations(contents.slice(2, 3)) }),
      step(2n, 'text', { infoJson: `"${'x'.repeat(400_000)}"` }),
      step(3n, 'five', { observations: observations(contents.slice(3, 8)) }),
      step(4n, 'four', { observations: observations(contents.slice(8)) }),
    ]);
    const pages: [bigint[], number][] = [];
    let pageToken = '';
    do {
      const request = { trajectoryId: made.id, view: View.FULL, inlineBytes: 262_144, pageToken };
      const response = await scene.rpc.listSteps(request);
      expect(toBinary(ListStepsResponseSchema, response).length).toBeLessThanOrEqual(LIMITS.messageBytes);
      pages.push([response.steps.map((owned) => owned.step!.stepNumber), response.blobs.length]);
      pageToken = response.nextPageToken;
    } while (pageToken !== '');
    expect(pages).toEqual([
      [[0n, 1n], 3],
      [[2n], 0],
      [[3n], 4],
      [[4n], 4],
    ]);
  });

  it('RD7: states of many trajectories are read together', async () => {
    const scene = on.scene();
    await Promise.all(
      Array.from({ length: 60 }, async (_, i) => {
        const made = await scene.create();
        const states = [0n, 1n].map((n) => state(Buffer.alloc(5_000, `${i} ${n} `)));
        await scene.write(made, [step(0n, 'a', { states: [states[0]!] }), step(1n, 'b', { states: [states[1]!] })]);
      }),
    );
    const read = async () => expect(check(await all(reading(scene, { inlineBytes: 8_000 })), 8_000)).toBe(120);
    expect(await statementsOfWarm(on.engine, read)).toBeLessThan(40);
  });

  it('RD7: what this process has stored lately is not read, and only for its own namespace', async () => {
    const fail = () => {
      throw new Error('the database was asked');
    };
    const app = on.app({}, wrappedStore(on.store, { locateStates: fail, readWholeStates: fail }));
    const scene = on.scene(app);
    const made = await scene.create();
    const bytes = Array.from({ length: 3 }, () => randomBytes(5_000));
    for (const [i, data] of bytes.entries()) await scene.write(made, [step(BigInt(i), 'a', { states: [state(data)] })]);
    const { namespace } = scene.caller;
    const digest = sha256(bytes[2]!);
    expect(on.store.heldState(namespace, digest)).toEqual(bytes[2]);
    expect(on.store.heldState(`${namespace}-other`, digest)).toBeUndefined();
    const request = { trajectoryId: made.id, view: View.FULL, descending: true, pageSize: 1 };
    const { blobs } = await scene.rpc.listSteps({ ...request, inlineBytes: 5_000 });
    expect(blobs.map(({ data }) => data)).toEqual([bytes[2]]);
    expect((await scene.rpc.listSteps({ ...request, inlineBytes: 4_999 })).blobs).toEqual([]);
    await app.close();
  });

  /** A scene in which every state is read from the database. */
  function forgetfulScene(): AppScene {
    return on.scene(on.app({}, wrappedStore(on.store, { heldState: () => undefined })));
  }

  it('S3, RD7: a damaged state is STATE_CORRUPT; a deleted one is left out', async () => {
    const scene = forgetfulScene();
    const made = await scene.create();
    const [small, row] = [state('small'), state(randomBytes(5_000), { name: 'row' })];
    await scene.write(made, [step(0n, 'a', { states: [small, row] })]);
    const sql = await outsideSql(on.database);
    const { namespace } = scene.caller;
    await sql.rows(`delete from states where namespace = '${namespace}' returning 1 as n`);
    const read = () => all(reading(scene, { inlineBytes: 8_000 }));
    expect((await read()).flatMap(({ blobs }) => blobs.map(({ data }) => data.length))).toEqual([5]);
    const damage = on.engine === 'sqlite' ? "x'01736d616c78'" : "'\\x01736d616c78'";
    await sql.rows(`update segments set states = ${damage} where namespace = '${namespace}' returning 1 as n`);
    await sql.close();
    const error = { reason: 'STATE_CORRUPT', metadata: { digest: sha256('small') } };
    expect(await refusalOf(all(readingSteps(scene, { trajectoryId: made.id, inlineBytes: 8_000 })))).toMatchObject(
      error,
    );
    expect(await read()).toMatchObject([{ steps: [], trajectoryDone: true, error }]);
    expect((await all(reading(scene))).flatMap(({ steps }) => steps)).toHaveLength(1);
    await scene.app.close();
  });

  it('S3, RD6, RD7: damaged states end only the trajectories that name them, although others are read with them', async () => {
    const scene = forgetfulScene();
    const bytes = Array.from({ length: 5 }, () => randomBytes(5_000));
    const digests = bytes.map((data) => sha256(data));
    const states = bytes.map((data) => state(data));
    const [a, b, c] = [await scene.create(), await scene.create(), await scene.create()];
    await scene.write(a, [step(0n, 'a', { states: [states[0]!] })]);
    await scene.write(b, [step(0n, 'a', { states: states.slice(0, 4).map((each, i) => ({ ...each, name: `${i}` })) })]);
    await scene.write(c, [step(0n, 'a', { states: [states[1]!] }), step(1n, 'b', { states: states.slice(4, 5) })]);
    const sql = await outsideSql(on.database);
    const damaged = on.engine === 'sqlite' ? `x'${digests[2]}'` : `'\\x${digests[2]}'`;
    await sql.rows(`update states set data = ${on.engine === 'sqlite' ? "x'00'" : "'\\x00'"}
      where namespace = '${scene.caller.namespace}' and digest = ${damaged} returning 1 as n`);
    await sql.close();
    const messages = await all(reading(scene, { inlineBytes: 8_000 }));
    expect(messages.filter(({ trajectoryDone }) => trajectoryDone)).toMatchObject([
      { steps: [{ stepNumber: 0n }] },
      { steps: [], error: { reason: 'STATE_CORRUPT', metadata: { digest: digests[2] } } },
      { steps: [{ stepNumber: 0n }, { stepNumber: 1n }] },
    ]);
    expect(messages.filter(({ error }) => error !== undefined)).toHaveLength(1);
    const sent = messages.flatMap(({ blobs }) => blobs.map(({ digest }) => digest));
    expect(sent).toEqual([0, 1, 4].map((i) => digests[i]));
    await scene.app.close();
  });
});
