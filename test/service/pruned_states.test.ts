import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import {
  GetStateRequestSchema,
  type GetStateResponse,
  ReadStatesRequestSchema,
} from '../../gen/es/anabranch/v1/state_service_pb.js';
import { readStates } from '../../src/service/state/read.ts';
import { getState } from '../../src/service/state/state.ts';
import { getCheckpoint } from '../../src/service/trajectory/checkpoint.ts';
import type { StateStore } from '../../src/store/contract/state.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { exported, imported } from '../store/archived.ts';
import { refusalOf } from '../store/scene.ts';
import { callOf } from '../support/parts_call.ts';
import { sha256 } from '../support/steps.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { type AppScene, all, describeApp, state, step } from './on_app.ts';

const large = (name: string) => `${name} `.repeat(2000);

describeApp('pruned states', (on) => {
  const prune = (scene: AppScene, of: Awaited<ReturnType<AppScene['create']>>, ...numbers: readonly bigint[]) =>
    on.store.pruneStates(
      scene.caller.namespace,
      of.ref,
      numbers.map((stepNumber) => ({ stepNumber, names: ['env', 'agent'], mediaTypes: [] })),
    );
  const setUp = async (given?: AppScene) => {
    const scene = given ?? on.scene();
    const made = await scene.create();
    await scene.write(made, [
      step(0n, 'a', { states: [state(large('env0')), state('agent0', { name: 'agent' })] }),
      step(1n, 'b', { states: [state(large('env1')), state('agent1', { name: 'agent' })] }),
      step(2n, 'c', { states: [state(large('env0')), state('agent2', { name: 'agent' })] }),
    ]);
    return { scene, made };
  };
  const read = async (
    { app, caller }: AppScene,
    fields: Parameters<typeof create<typeof GetStateRequestSchema>>[1],
  ) => {
    const chunks = await all(getState(create(GetStateRequestSchema, fields), callOf(app, caller)));
    return Buffer.concat(chunks.map((sent) => (sent.decode() as GetStateResponse).chunk)).toString();
  };
  const readMany = ({ app, caller }: AppScene, source: MessageInitShape<typeof ReadStatesRequestSchema>) =>
    all(readStates(create(ReadStatesRequestSchema, source), callOf(app, caller)));
  const at = (trajectoryId: string, stepNumber: bigint, name = 'env') => ({ trajectoryId, stepNumber, name });

  it('S13: by reference a pruned state is STATE_PRUNED; by digest it is found as long as another step keeps it', async () => {
    const { scene, made } = await setUp();
    await prune(scene, made, 0n, 1n);
    for (const name of ['env', 'agent']) {
      const refusal = await refusalOf(read(scene, { reference: at(made.id, 1n, name) }));
      expect(refusal).toMatchObject({ reason: 'STATE_PRUNED', metadata: { step_number: '1', name } });
      expect(refusal.metadata.pruned_time).toMatch(/^2\d{3}-.*Z$/);
    }
    await on.store.collectStates(24, 100);
    expect(await read(scene, { digest: sha256(large('env0')) })).toBe(large('env0'));
    expect(await refusalOf(read(scene, { digest: sha256(large('env1')) }))).toMatchObject({
      reason: 'STATE_NOT_FOUND',
    });
    expect(await read(scene, { reference: at(made.id, 2n) })).toBe(large('env0'));
  });

  it('S13, V6: by reference a pruned state is STATE_PRUNED after an import, too, with the time of its removal', async () => {
    const { scene, made } = await setUp();
    await prune(scene, made, 0n, 1n);
    const refusals = () =>
      Promise.all(['env', 'agent'].map((name) => refusalOf(read(scene, { reference: at(made.id, 1n, name) }))));
    const before = await refusals();
    const { namespace } = scene.caller;
    const parts = await exported(on.store, namespace);
    await on.store.deleteTrajectory(namespace, made.id, 'REFUSE');
    while (await on.store.purgeDeleted(500));
    await imported(on.store, namespace, parts);
    const after = await refusals();
    expect(after.map(({ reason }) => reason)).toEqual(['STATE_PRUNED', 'STATE_PRUNED']);
    expect(after.map(({ metadata }) => metadata)).toEqual(before.map(({ metadata }) => metadata));
    expect(await read(scene, { reference: at(made.id, 2n) })).toBe(large('env0'));
  });

  it('S13, RD3: GetCheckpoint and ReadStates skip pruned states, and steps tell when they were pruned', async () => {
    const { scene, made } = await setUp();
    await prune(scene, made, 1n, 2n);
    const request = { trajectoryId: made.id, stateNames: [] } as unknown as Parameters<typeof getCheckpoint>[2];
    expect(await getCheckpoint(scene.app, scene.caller, request)).toMatchObject({ step: { stepNumber: 0n } });
    const numbered = { ...request, stepNumber: 1n };
    expect(await refusalOf(getCheckpoint(scene.app, scene.caller, numbered))).toMatchObject({
      reason: 'CHECKPOINT_NOT_FOUND',
    });
    const messages = await readMany(scene, { range: { trajectoryId: made.id } });
    expect(messages.flatMap(({ pieces }) => pieces).map(({ stepNumber }) => stepNumber)).toEqual([0n]);
  });

  it('S13: what is pruned while it is read is STATE_PRUNED, or is left out of ReadStates', async () => {
    const { scene, made } = await setUp();
    // Prunes before the bytes of the first state are read.
    let pruned: Promise<void> | undefined;
    const racing: Pick<StateStore, 'readState'> = {
      async readState(...args) {
        pruned ??= prune(scene, made, 0n, 1n, 2n).then(async () => void (await on.store.collectStates(24, 100)));
        await pruned;
        return on.store.readState(...args);
      },
    };
    const app = on.app({}, wrappedStore(on.store, racing) as Store);
    const beside = on.scene(app, scene.caller.namespace);
    expect(await readMany(beside, { range: { trajectoryId: made.id } })).toEqual([]);
    for (const reading of [
      () => read(beside, { reference: at(made.id, 0n) }),
      () => readMany(beside, { references: [at(made.id, 0n)] }),
    ]) {
      expect(await refusalOf(reading())).toMatchObject({ reason: 'STATE_PRUNED' });
    }
    await app.close();
  });
});
