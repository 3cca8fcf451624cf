import { randomBytes } from 'node:crypto';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import type {
  GetCheckpointRequestSchema,
  GetCheckpointResponse,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { refusalOf } from '../store/scene.ts';
import { sha256, textAction } from '../support/steps.ts';
import { type AppScene, describeApp, shownWord, state, step } from './on_app.ts';

describeApp('GetCheckpoint', (on) => {
  async function setUp() {
    const scene = on.scene();
    const root = await scene.create();
    await scene.write(root, [
      step(0n, 'a', { states: [state('env0')] }),
      step(1n, 'b', { states: [state('env1'), state('mem1', { name: 'agent' })] }),
      step(2n, 'c'),
      step(3n, 'd', { states: [state('env3')] }),
    ]);
    const branch = await scene.branch(root, 2n);
    await scene.write(branch, [step(3n, 'D'), step(4n, 'E')]);
    await on.store.setTag(scene.caller.namespace, branch.id, 'best', 1n, -1n);
    const get = (fields: Fields = {}) => checkpoint(scene, branch.id, fields);
    return { scene, root, branch, get };
  }

  it('RD3: returns the latest step with a state, including inherited ones, with its states inline', async () => {
    const { root, get } = await setUp();
    const found = await get();
    expect(found).toMatchObject({ trajectoryId: root.id, step: { stepNumber: 1n } });
    expect(inlineOf(found)).toEqual({ agent: 'mem1', env: 'env1' });
  });

  it('RD3: finds it at a number, by tag, at or before a number, and with the named states', async () => {
    const { get } = await setUp();
    expect((await get({ stepNumber: 0n })).step?.stepNumber).toBe(0n);
    expect((await get({ tag: 'best' })).step?.stepNumber).toBe(1n);
    expect((await get({ atOrBefore: 0n })).step?.stepNumber).toBe(0n);
    expect((await get({ atOrBefore: 1000n })).step?.stepNumber).toBe(1n);
    expect((await get({ stateNames: ['', 'agent', 'env'] })).step?.stepNumber).toBe(1n);
    expect((await get({ atOrBefore: 0n, stateNames: [''] })).step?.stepNumber).toBe(0n);
  });

  it('RD3: the error says what is missing', async () => {
    const { get, branch } = await setUp();
    const reason = async (fields: Fields) => (await refusalOf(get(fields))).reason;
    expect(await reason({ stepNumber: 4n })).toBe('CHECKPOINT_NOT_FOUND');
    expect(await reason({ stepNumber: 0n, stateNames: ['agent'] })).toBe('CHECKPOINT_NOT_FOUND');
    expect(await reason({ atOrBefore: 0n, stateNames: ['agent'] })).toBe('CHECKPOINT_NOT_FOUND');
    expect(await reason({ stateNames: ['none'] })).toBe('CHECKPOINT_NOT_FOUND');
    expect(await reason({ stepNumber: 5n })).toBe('STEP_NOT_FOUND');
    expect(await reason({ tag: 'none' })).toBe('TAG_NOT_FOUND');
    expect((await refusalOf(get({ stateNames: ['none'] }))).message).toContain(branch.id);
    const { scene } = await setUp();
    const empty = await scene.create();
    expect((await refusalOf(checkpoint(scene, empty.id))).reason).toBe('CHECKPOINT_NOT_FOUND');
  });

  it('RD3: states are inline while the answer stays below 1 MiB, each up to 512 KiB', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const inline = ['a', 'b', 'c'].map((name) => state(randomBytes(LIMITS.inlineStateBytes - 20_000), { name }));
    const over = randomBytes(LIMITS.inlineStateBytes + 1);
    const upload = scene.app.store.putState(scene.caller.namespace);
    await upload.write(over.subarray(0, LIMITS.chunkBytes));
    await upload.write(over.subarray(LIMITS.chunkBytes, 2 * LIMITS.chunkBytes));
    await upload.write(over.subarray(2 * LIMITS.chunkBytes));
    await upload.finish();
    const large = state(undefined, { name: 'd', digest: sha256(over) });
    const actions = [textAction('x'.repeat(100_000))];
    await scene.write(trajectory, [
      step(0n, '', { actions, states: [...inline, large, state('small', { name: 'e' })] }),
    ]);
    const found = await checkpoint(scene, trajectory.id);
    // 100 kB of text and one state leave no room for a second, except for the smallest.
    expect(Object.keys(inlineOf(found))).toEqual(['a', 'e']);
    expect(found.step?.states.map(({ name, size }) => [name, size])).toContainEqual(['d', BigInt(over.length)]);
  });

  it('FM2: GetStep accepts a number or a tag, and returns the owner of the step', async () => {
    const { scene, root, branch } = await setUp();
    const get = (at: { stepNumber: bigint } | { tag: string }) => scene.rpc.getStep({ trajectoryId: branch.id, ...at });
    const tagged = await get({ tag: 'best' });
    expect([tagged.trajectoryId, shownWord(tagged)]).toEqual([root.id, 'b']);
    expect(shownWord(await get({ stepNumber: 3n }))).toBe('D');
    expect((await refusalOf(get({ stepNumber: 5n }))).metadata).toMatchObject({ next_step_number: '5' });
  });
});

type Fields = Omit<MessageInitShape<typeof GetCheckpointRequestSchema>, '$typeName'>;

function checkpoint(scene: AppScene, trajectoryId: string, fields: Fields = {}): Promise<GetCheckpointResponse> {
  return scene.rpc.getCheckpoint({ trajectoryId, ...fields });
}

/** The bytes of states that came with the step, as text by name. */
function inlineOf({ step: found }: GetCheckpointResponse): Readonly<Record<string, string>> {
  const inline = (found?.states ?? []).flatMap(({ name, data }) =>
    data ? [[name, Buffer.from(data).toString()]] : [],
  );
  return Object.fromEntries(inline);
}
