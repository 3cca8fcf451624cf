import { randomBytes } from 'node:crypto';
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import {
  DiffStatesRequestSchema,
  DiffStatesResponseSchema,
  NoPatchReason,
} from '../../gen/es/anabranch/v1/state_service_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { diffStates } from '../../src/service/state/diff.ts';
import { putState } from '../../src/service/state/put.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { appWithin } from '../../src/stream/app.ts';
import { refusalOf } from '../store/scene.ts';
import { callOf } from '../support/parts_call.ts';
import { sha256 } from '../support/steps.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { type AppScene, describeApp, state, step } from './on_app.ts';

const MiB = 1024 * 1024;

describeApp('DiffStates', (on) => {
  it('S7: compares JSON states of steps, own and inherited, with each other and with a state by its digest', async () => {
    const scene = on.scene();
    const root = await scene.create();
    const json = (value: unknown) => state(JSON.stringify(value), { mediaType: 'application/json' });
    await scene.write(root, [step(0n, 'r', { states: [json({ hp: 10, at: [1, 2] })] })]);
    const branch = await scene.branch(root, 0n);
    const agent = state('{"mood":"calm"}', { name: 'agent' });
    await scene.write(branch, [step(1n, 'b', { states: [json({ hp: 9, at: [1, 2, 3] }), agent] })]);
    const before = { trajectoryId: branch.id, stepNumber: 0n };
    const after = { trajectoryId: branch.id, stepNumber: 1n };

    expect(await diff(scene, { reference: before, otherReference: after })).toMatchObject({
      state: { digest: sha256('{"hp":10,"at":[1,2]}'), size: 20n },
      mediaType: 'application/json',
      otherState: { digest: sha256('{"hp":9,"at":[1,2,3]}'), size: 21n },
      otherMediaType: 'application/json',
      identical: false,
      patchJson: '[{"op":"replace","path":"/hp","value":9},{"op":"add","path":"/at/2","value":3}]',
      noPatchReason: NoPatchReason.UNSPECIFIED,
      truncated: false,
    });
    const put = await upload(scene, '{"mood":"angry"}\n');
    expect(await diff(scene, { reference: { ...after, name: 'agent' }, otherDigest: put })).toMatchObject({
      mediaType: '',
      otherMediaType: '',
      patchJson: '[{"op":"replace","path":"/mood","value":"angry"}]',
    });
    const spaced = await upload(scene, '{ "mood": "angry" }');
    expect(await diff(scene, { digest: put, otherDigest: spaced })).toMatchObject({
      identical: false,
      patchJson: '[]',
    });
  });

  it('S7: states with equal bytes are identical, and are not read', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const bytes = randomBytes(300 * 1024);
    const digest = await upload(scene, bytes);
    await scene.write(trajectory, [step(0n, 's', { states: [state(undefined, { digest })] })]);
    const reads: string[] = [];
    const app = on.app({}, counted(on.store, reads));
    const reference = { trajectoryId: trajectory.id, stepNumber: 0n };
    const answer = await diff(scene, { digest, otherReference: reference }, app);
    expect(answer).toMatchObject({ identical: true, state: { digest }, otherState: { digest } });
    expect(answer).toMatchObject({ noPatchReason: NoPatchReason.UNSPECIFIED, changedRanges: [] });
    expect(answer.patchJson).toBeUndefined();
    expect(reads).toEqual([]);
    await app.close();
  });

  it.each([
    ['NOT_JSON', '{"a":NaN}', '{"a":1}'],
    ['NOT_JSON', '', '{}'],
    ['DUPLICATE_KEYS', '{"a":1,"a":2}', '{"a":1}'],
    ['TOO_COMPLEX', `${'['.repeat(10_000)}${']'.repeat(10_000)}`, '[]'],
    ['PATCH_TOO_LARGE', '1', JSON.stringify('x'.repeat(MiB))],
  ] as const)('S7: without a patch (%s), the changed ranges are returned', async (reason, one, other) => {
    const scene = on.scene();
    const [digest, otherDigest] = [await upload(scene, one), await upload(scene, other)];
    const size = Math.max(one.length, other.length);
    expect(await diff(scene, { digest, otherDigest })).toMatchObject({
      noPatchReason: NoPatchReason[reason],
      changedRanges: [{ startOffset: 0n, endOffset: BigInt(size) }],
      truncated: false,
    });
  });

  it('S7: JSON of exactly 4 MiB has a patch; with a byte more it has ranges', async () => {
    const scene = on.scene();
    const json = (n: number, size: number) => `{"n":${n},"text":"${'x'.repeat(size - '{"n":1,"text":""}'.length)}"}`;
    const digests = await Promise.all([
      upload(scene, json(1, 4 * MiB)),
      upload(scene, json(2, 4 * MiB)),
      upload(scene, json(2, 4 * MiB + 1)),
    ]);
    const [digest, otherDigest, larger] = digests;
    expect(await diff(scene, { digest, otherDigest })).toMatchObject({
      state: { size: 4n * 1024n * 1024n },
      patchJson: '[{"op":"replace","path":"/n","value":2}]',
    });
    const end = BigInt(4 * MiB);
    expect(await diff(scene, { digest, otherDigest: larger })).toMatchObject({
      noPatchReason: NoPatchReason.TOO_LARGE,
      changedRanges: [
        { startOffset: 0n, endOffset: 64n },
        { startOffset: end - 64n, endOffset: end + 1n },
      ],
    });
  });

  it('S7: changed ranges are found across the chunks of both states', async () => {
    const scene = on.scene();
    const one = randomBytes(2 * MiB);
    const other = Buffer.concat([one.subarray(0, MiB + 7)]);
    const changes = [0, LIMITS.chunkBytes - 1, LIMITS.chunkBytes, MiB / 2 + 100, MiB];
    for (const at of changes) other[at]! ^= 1;
    const [digest, otherDigest] = [await upload(scene, one), await upload(scene, other)];
    const { changedRanges, truncated } = await diff(scene, { digest, otherDigest });
    expect(changedRanges.map(({ startOffset, endOffset }) => [Number(startOffset), Number(endOffset)])).toEqual([
      [0, 64],
      [LIMITS.chunkBytes - 64, LIMITS.chunkBytes + 64],
      [MiB / 2 + 64, MiB / 2 + 128],
      [MiB, 2 * MiB],
    ]);
    expect(truncated).toBe(false);
  });

  it('S7: after 10,000 ranges the rest is not read', async () => {
    const scene = on.scene();
    const one = Buffer.alloc(5 * MiB);
    const other = Buffer.alloc(5 * MiB);
    for (let at = 0; at < other.length; at += 128) other[at] = 1;
    const [digest, otherDigest] = [await upload(scene, one), await upload(scene, other)];
    const reads: string[] = [];
    const app = on.app({}, counted(on.store, reads));
    const answer = await diff(scene, { digest, otherDigest }, app);
    expect(answer).toMatchObject({ truncated: true, noPatchReason: NoPatchReason.TOO_LARGE });
    expect(answer.changedRanges.length).toBe(10_000);
    expect(answer.changedRanges.at(-1)).toMatchObject({ startOffset: 9999n * 128n, endOffset: 9999n * 128n + 64n });
    expect(reads.length).toBeLessThanOrEqual(2 * Math.ceil((10_001 * 128) / LIMITS.chunkBytes));
    await app.close();
  });

  it.each([
    ['JSON', 1000],
    ['bytes', 5 * MiB],
  ])('S3, S7: a damaged state is STATE_CORRUPT (%s)', async (_, size) => {
    const scene = on.scene();
    const [one, other] = [JSON.stringify('x'.repeat(size)), JSON.stringify('y'.repeat(size))];
    const [digest, otherDigest] = [await upload(scene, one), await upload(scene, other)];
    // The store claims that these bytes are verified, but they are not the state.
    const lying = wrappedStore(on.store, {
      async readState(namespace, wanted, offset) {
        const piece = Buffer.from(await on.store.readState(namespace, wanted, offset));
        if (wanted === otherDigest && offset === 0) piece[17]! ^= 1;
        return piece;
      },
    });
    const app = on.app({}, lying);
    const refused = await refusalOf(diff(scene, { digest, otherDigest }, app));
    expect(refused).toMatchObject({ reason: 'STATE_CORRUPT', metadata: { digest: otherDigest } });
    await app.close();
  });

  it('N1, S7: a state of another namespace is not found, by digest or by step', async () => {
    const scene = on.scene();
    const elsewhere = on.scene();
    const trajectory = await scene.create();
    await scene.write(trajectory, [step(0n, 's', { states: [state('secret')] })]);
    const [own, theirs] = [await upload(elsewhere, 'own'), await upload(scene, 'theirs')];
    const reference = { trajectoryId: trajectory.id, stepNumber: 0n };
    const reasonFor = async (other: MessageInitShape<typeof DiffStatesRequestSchema>) =>
      (await refusalOf(diff(elsewhere, { digest: own, ...other }))).reason;
    expect(await reasonFor({ otherDigest: theirs })).toBe('STATE_NOT_FOUND');
    expect(await reasonFor({ otherReference: reference })).toBe('TRAJECTORY_NOT_FOUND');
  });

  it('S7: of two wrong digests the malformed one is refused, and nothing is looked up', async () => {
    const scene = on.scene();
    const [unknown, malformed] = ['0'.repeat(64), 'A'.repeat(64)];
    for (const [digest, otherDigest, field] of [
      [unknown, malformed, 'other_digest'],
      [malformed, unknown, 'digest'],
    ] as const) {
      expect(await refusalOf(diff(scene, { digest, otherDigest }))).toMatchObject({ violations: [{ field }] });
    }
    const refused = await refusalOf(diff(scene, { digest: unknown, otherDigest: '1'.repeat(64) }));
    expect(refused.reason).toBe('STATE_NOT_FOUND');
  });

  it('A6, S7: a call that ends meanwhile reads no further', async () => {
    const scene = on.scene();
    const [digest, otherDigest] = [
      await upload(scene, randomBytes(5 * MiB)),
      await upload(scene, randomBytes(5 * MiB)),
    ];
    const leaving = new AbortController();
    const reason = new Error('the caller has left');
    const reads: string[] = [];
    const app = on.app();
    const within = appWithin(app, { signal: leaving.signal });
    const watching = {
      ...within,
      store: wrappedStore(within.store, {
        readState(namespace, wanted, offset) {
          reads.push(wanted);
          if (reads.length === 4) leaving.abort(reason);
          return within.store.readState(namespace, wanted, offset);
        },
      }),
    };
    await expect(diff(scene, { digest, otherDigest }, watching)).rejects.toBe(reason);
    expect(reads.length).toBeLessThanOrEqual(5);
    await app.close();
  });
});

/** Adds the digest of every read to a list. */
function counted(store: Store, reads: string[]): Store {
  return wrappedStore(store, {
    readState(namespace, digest, offset) {
      reads.push(digest);
      return store.readState(namespace, digest, offset);
    },
  });
}

async function upload(scene: AppScene, content: string | Uint8Array): Promise<string> {
  const chunks = (async function* () {
    yield Buffer.from(content as string);
  })();
  return (await putState(scene.app, scene.caller, { digest: undefined, chunks })).digest;
}

async function diff(
  { app: ownApp, caller }: AppScene,
  request: MessageInitShape<typeof DiffStatesRequestSchema>,
  app = ownApp,
) {
  const call = callOf(app, caller);
  return create(DiffStatesResponseSchema, await diffStates(create(DiffStatesRequestSchema, request), call));
}
