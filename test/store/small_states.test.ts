import { expect, it } from 'vitest';
import { LIMITS } from '../../src/domain/limits.ts';
import type { StateRef, Step } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { makeStep, newState, smallRef, stateRef } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { putState, refusalOf, type Scene } from './scene.ts';
import { countRows } from './sql.ts';
import { statementsOfWarm } from './statement_count.ts';

describeStore('small states', (on) => {
  const attach = (scene: Scene, to: Trajectory, stepNumber: bigint, name: string, text: string) => {
    const { digest, data } = newState(text);
    const fence = { trajectoryId: to.id, uid: undefined, writerEpoch: undefined };
    return scene.store.attachState(scene.caller, { ...fence, stepNumber, name, digest, mediaType: 'm', data });
  };
  const read = async (
    scene: Scene,
    of: Trajectory,
    owner: Trajectory,
    stepNumber: bigint,
    names: readonly string[],
  ) => {
    const place = { tree: of.ref.tree, owner: owner.ref.key, stepNumber };
    const found = await scene.store.readSmallStates(scene.namespace, place, names);
    return Object.fromEntries([...found].map(([name, data]) => [name, Buffer.from(data).toString()]));
  };
  const listed = async (scene: Scene, of: Trajectory, name: string, from = 0n, limit = 256) => {
    const lineage = await scene.lineage(of);
    return scene.store.listStepStates(scene.namespace, of.ref.tree, lineage, { name, from, limit });
  };

  it('S1: a small state is stored in the row of its step: it has no row, and no digest finds it', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const [small, large] = [newState('small'), newState('large'.repeat(1000))];
    const states = [smallRef(small, 'agent', 'text/plain'), stateRef(large), smallRef(newState(''), 'none')];
    await scene.append(made, [makeStep(0n, { states })], { states: [large] });
    expect(await countRows(on.sql, scene.namespace)).toMatchObject({ states: 1, state_refs: 1 });
    expect(await scene.store.findStates(scene.namespace, [small.digest], false)).toEqual([]);
    expect(await read(scene, made, made, 0n, ['agent', 'env', 'none', 'other'])).toEqual({ agent: 'small', none: '' });
    const [stored] = await scene.steps(made);
    expect(stored?.step.states).toEqual(states.map(withoutData));
    expect(await scene.append(made, [makeStep(0n, { states })])).toMatchObject({ duplicates: 1 });
  });

  it('S1: an inline small state leaves a row with the same bytes alone: no reference, no renewal', async () => {
    const scene = on.scene();
    const small = newState('twice');
    await putState(scene.store, scene.namespace, small.data);
    const rows = () => on.sql.rows(`select * from states where namespace = '${scene.namespace}'`);
    const before = await rows();
    const made = await scene.create();
    await scene.append(made, [makeStep(0n, { states: [smallRef(small)] })]);
    expect(await rows()).toEqual(before);
    expect(await read(scene, made, made, 0n, ['env'])).toEqual({ env: 'twice' });
    await scene.append(made, [makeStep(1n, { states: [{ ...stateRef(small), size: 0 }] })]);
    expect(await read(scene, made, made, 1n, ['env'])).toEqual({});
    expect((await scene.steps(made)).map(({ step }) => step.states[0]?.size)).toEqual([5, 5]);
  });

  it('S1: a step cannot name a small state by digest, not even one of the same batch', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const small = newState('elsewhere');
    const named = makeStep(1n, { states: [{ ...stateRef(small), size: 0 }] });
    const refusal = await refusalOf(scene.append(made, [makeStep(0n, { states: [smallRef(small)] }), named]));
    expect(refusal).toMatchObject({ reason: 'STATE_NOT_FOUND', metadata: { digest: small.digest } });
    expect(refusal.message).toContain('send its bytes inline');
    expect(await scene.get(made.id)).toMatchObject({ nextStepNumber: 0n });
  });

  it('W10: an attached small state is stored with its attachment, and found by its name', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const steps = [0n, 1n, 2n].map((number) => makeStep(number, { states: number === 1n ? [small('own')] : [] }));
    await scene.append(made, steps);
    const branch = await scene.branch(made, 2n);
    expect(await attach(scene, made, 1n, 'after', 'attached')).toMatchObject({ duplicate: false, state: { size: 8 } });
    expect(await attach(scene, made, 1n, 'after', 'attached')).toMatchObject({ duplicate: true, state: { size: 8 } });
    expect(await refusalOf(attach(scene, made, 1n, 'after', 'other'))).toMatchObject({ reason: 'STATE_CONFLICT' });
    expect(await refusalOf(attach(scene, made, 1n, 'env', 'other'))).toMatchObject({ reason: 'STATE_CONFLICT' });
    expect(await countRows(on.sql, scene.namespace)).toMatchObject({ states: 0, state_refs: 0, attached_states: 1 });
    for (const each of [made, branch]) {
      expect(await read(scene, each, made, 1n, ['after', 'env'])).toEqual({ after: 'attached', env: 'own' });
      const lineage = await scene.lineage(each);
      const found = await scene.store.findCheckpoint(scene.namespace, made.ref.tree, lineage, 9n, ['after', 'env']);
      expect(found?.step.states.map(({ name }) => name)).toEqual(['after', 'env']);
      expect((await listed(scene, each, 'after')).map(({ stepNumber }) => stepNumber)).toEqual([1n]);
    }
    expect(await scene.append(made, steps)).toMatchObject({ duplicates: 3 });
  });

  it('a row holds at most 64 KiB of steps and their small states', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const states = (n: number) => [small('x'.repeat(LIMITS.smallStateBytes - 1 - n))];
    await scene.append(
      made,
      Array.from({ length: 40 }, (_, i) => makeStep(BigInt(i), { states: states(i) })),
    );
    const rows = await on.sql.rows(`select next_step_number - first_step_number as n,
      octet_length(body) + octet_length(states) as bytes from segments where namespace = '${scene.namespace}'`);
    expect(rows.map(({ n }) => Number(n)).sort()).toEqual([15, 15, 10].sort());
    for (const { bytes } of rows) expect(Number(bytes)).toBeLessThan(66 * 1024);
  });

  it('B2: a trim cuts the small states of the removed steps, and branches read the others', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const large = newState('large'.repeat(1000));
    const steps = Array.from({ length: 30 }, (_, i) =>
      makeStep(BigInt(i), { states: [small(`state ${i}`), ...(i % 3 === 0 ? [stateRef(large, 'large')] : [])] }),
    );
    await scene.append(made, steps, { states: [large] });
    await attach(scene, made, 4n, 'after', 'kept');
    await attach(scene, made, 20n, 'after', 'removed');
    const branch = await scene.branch(made, 12n);
    const bytes = async () => {
      const [row] = await on.sql.rows(
        `select octet_length(states) as n, state_names from segments where namespace = '${scene.namespace}'`,
      );
      return { n: Number(row?.n), names: JSON.parse(`${row?.state_names}`) as unknown };
    };
    const before = await bytes();
    await scene.delete(made, 'KEEP_SHARED');
    const after = await bytes();
    expect(after.n).toBeLessThan(before.n / 2);
    expect(after.names).toEqual(
      expect.arrayContaining([
        ['env', 0, 13],
        ['large', 12, 13],
        ['after', 4, 5],
      ]),
    );
    expect(JSON.stringify(after.names)).not.toContain('20');
    for (const i of [0, 4, 12]) {
      expect(await read(scene, branch, made, BigInt(i), ['env'])).toEqual({ env: `state ${i}` });
    }
    const texts = (await listed(scene, branch, 'env')).map(({ state }) => Buffer.from(state.data!).toString());
    expect(texts).toEqual(steps.slice(0, 13).map((_, i) => `state ${i}`));
    await scene.delete(branch);
    while (await scene.store.purgeDeleted(100));
    expect(await countRows(on.sql, scene.namespace)).toMatchObject({ segments: 0, state_refs: 0, attached_states: 0 });
  });

  it('S3: a damaged small state is STATE_CORRUPT, and everything else can be read', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const steps = ['one', 'two', 'three'].map((text, i) => makeStep(BigInt(i), { states: [small(text)] }));
    await scene.append(made, steps);
    const flipped = Buffer.from('\u0001one\u0001tvo\u0001three').toString('hex');
    await on.sql.rows(`update segments set states = ${on.engine === 'sqlite' ? `x'${flipped}'` : `'\\x${flipped}'`}
      where namespace = '${scene.namespace}'`);
    const damaged = newState('two').digest;
    expect(await refusalOf(read(scene, made, made, 1n, ['env']))).toMatchObject({
      reason: 'STATE_CORRUPT',
      metadata: { digest: damaged },
    });
    expect(await read(scene, made, made, 0n, ['env'])).toEqual({ env: 'one' });
    expect(await read(scene, made, made, 2n, ['env'])).toEqual({ env: 'three' });
    expect(await scene.steps(made)).toHaveLength(3);
  });

  it('W7: steps with small states take the statements of steps without states', async () => {
    const scene = on.scene();
    const made = await scene.create();
    let next = 0n;
    const append = (states: readonly StateRef[]) => () => {
      const steps = [makeStep(next, { states }), makeStep(next + 1n, { states })];
      next += 2n;
      return scene.append(made, steps);
    };
    const without = await statementsOfWarm(on.engine, append([]));
    expect(await statementsOfWarm(on.engine, append([small('state')]))).toBe(without);
  });

  it('RD3, RD4, S5: checkpoints, lists and sequences equal a naive copy, for any names, branches and attachments', async () => {
    const scene = on.scene();
    const random = seeded(20);
    const large = newState('large'.repeat(1000));
    const lineages: { made: Trajectory; names: Map<string, string>[]; own: number }[] = [];
    const extend = async (of: (typeof lineages)[number]) => {
      for (let batch = 0; batch < 4; batch += 1) {
        const steps: Step[] = [];
        for (let i = 0; i < 1 + random(6); i += 1) {
          const states: StateRef[] = [];
          for (const name of ['a', 'b', `"'\\%_`, 'große']) {
            if (random(5) > 1) continue;
            states.push(random(4) === 0 ? stateRef(large, name) : small(`${of.names.length} ${name}`, name));
          }
          steps.push(makeStep(BigInt(of.names.length), { states, reward: random(3) }));
          of.names.push(new Map(states.map(({ name, data }) => [name, data ? Buffer.from(data).toString() : 'large'])));
        }
        await scene.append(of.made, steps, { states: [large] });
      }
      for (let i = 0; i < 6; i += 1) {
        const number = of.own + random(of.names.length - of.own);
        const name = ['a', 'b', 'late'][random(3)]!;
        if (of.names[number]!.has(name)) continue;
        const text = random(3) === 0 ? 'large' : `attached ${number}`;
        await attach(scene, of.made, BigInt(number), name, text === 'large' ? 'large'.repeat(1000) : text);
        of.names[number]!.set(name, text);
      }
    };
    lineages.push({ made: await scene.create(), names: [], own: 0 });
    await extend(lineages[0]!);
    for (let i = 0; i < 4; i += 1) {
      const source = lineages[random(lineages.length)]!;
      const point = random(source.names.length);
      const names = source.names.slice(0, point + 1).map((each) => new Map(each));
      const branch = { made: await scene.branch(source.made, BigInt(point)), names, own: point + 1 };
      await extend(branch);
      lineages.push(branch);
    }
    // Attachments to a source after a branch was made are seen by the branch too.
    for (const { made } of lineages) {
      const { ref } = made;
      const lineage = await scene.lineage(made);
      const steps = await scene.steps(made);
      const has = (number: number, wanted: readonly string[]) => {
        const here = steps[number]!.step.states.map(({ name }) => name);
        return wanted.length === 0 ? here.length > 0 : wanted.every((name) => here.includes(name));
      };
      for (const wanted of [[], ['a'], ['b'], ['a', 'b'], ['late'], ['late', 'a'], [`"'\\%_`], ['große'], ['none']]) {
        const numbers = steps.map((_, number) => number);
        for (const end of numbers.filter((number) => number % 3 === 0)) {
          const found = await scene.store.findCheckpoint(scene.namespace, ref.tree, lineage, BigInt(end), wanted);
          const expected = numbers.filter((number) => number <= end && has(number, wanted)).at(-1);
          expect(found?.step, `${wanted} up to ${end}`).toEqual(
            expected === undefined ? undefined : steps[expected]!.step,
          );
        }
        if (wanted.length > 1) continue;
        const { steps: list } = await scene.store.listSteps(
          scene.namespace,
          { of: { tree: ref.tree, lineage }, hasState: wanted[0] ?? true },
          { by: 'NUMBER', descending: false },
          { after: undefined, limit: 1000, maxBytes: 1024 * 1024 },
          'FULL',
        );
        expect(list.map(({ step }) => Number(step.stepNumber))).toEqual(numbers.filter((n) => has(n, wanted)));
        const [name] = wanted;
        if (name === undefined) continue;
        const from = random(steps.length);
        const sequence = [];
        for (let at = BigInt(from); ; ) {
          const page = await listed(scene, made, name, at, 3);
          sequence.push(...page);
          if (page.length < 3) break;
          at = page.at(-1)!.stepNumber + 1n;
        }
        const expected = steps.slice(from).flatMap(({ owner, step }) => {
          const state = step.states.find((each) => each.name === name);
          return state === undefined ? [] : [{ owner, stepNumber: step.stepNumber, state: withoutData(state) }];
        });
        expect(sequence.map(({ state, ...each }) => ({ ...each, state: withoutData(state) }))).toEqual(expected);
        for (const { state } of sequence)
          if (state.data !== undefined) expect(newState(state.data).digest).toBe(state.digest);
      }
    }
    // Every state's bytes are where its step says.
    for (const { made, names, own } of lineages) {
      for (let number = own; number < names.length; number += 1) {
        const found = await read(scene, made, made, BigInt(number), [...names[number]!.keys()]);
        const expected = [...names[number]!].filter(([, text]) => text !== 'large');
        expect(found).toEqual(Object.fromEntries(expected));
      }
    }
  });
});

function small(text: string, name = 'env'): StateRef {
  return smallRef(newState(text), name, 'm');
}

function withoutData({ data: _, attachTime: __, ...state }: StateRef): StateRef {
  return state;
}

/** Returns a generator of integers below a bound, the same in every run. */
function seeded(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state * 1_103_515_245 + 12_345) % 2_147_483_648;
    return Math.floor((state / 2_147_483_648) * below);
  };
}
