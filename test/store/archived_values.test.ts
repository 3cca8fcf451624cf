import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { ArchivePart } from '../../src/domain/archive.ts';
import { AnabranchError } from '../../src/domain/errors.ts';
import { checkedPart } from '../../src/store/sql/upkeep/archive/checked_parts.ts';
import { NOUNS, plainColumns } from '../../src/store/sql/upkeep/archive/nouns.ts';
import { wordStep } from '../support/steps.ts';
import { archivedLines, exported, imported, onTarget } from './archived.ts';
import { furnishRollouts } from './furnish_rollouts.ts';
import { describeStore } from './on_store.ts';
import { RolloutScene, tokenOf } from './rollout_scene.ts';
import { expectVerified, faultsOf } from './verified.ts';

const LARGEST = '9223372036854775807';
const ALL = { limit: 100, after: undefined };

it('V6: each column that archives have as it is has a form, apart from flags and UUIDs', () => {
  const without = Object.values(NOUNS).flatMap((noun) =>
    plainColumns(noun).filter(({ type, form }) => form === undefined && type !== 'bool' && type !== 'uuid'),
  );
  expect(without).toEqual([]);
});

it('V6: one transaction stores at most 50 records and 1000 rows, apart from a record that has more', () => {
  const numbers = (text: string) =>
    [...checkedPart({ kind: 'records', text })].map(({ checked }) => 'records' in checked && checked.records.length);
  expect(numbers(deleted(120))).toEqual([50, 50, 20]);
  expect(numbers([1000, 1000, 400, 400, 400].map(points).join(''))).toEqual([1, 1, 2, 1]);
});

function deleted(count: number): string {
  const lines = Array.from({ length: count }, () => {
    return { record: 'deleted_trajectory', id: randomUUID(), delete_time: '2026-01-01T00:00:00.000000Z' };
  });
  return lines.map((line) => `${JSON.stringify(line)}\n`).join('');
}

function points(count: number): string {
  const all = Array.from({ length: count }, (_, i) => [`${i}`, i]);
  return `${JSON.stringify({ record: 'metric_points', run: randomUUID(), stage: null, name: 'loss', points: all })}\n`;
}

/** A record of each kind with this value in a column. */
const DAMAGE: readonly (readonly [record: string, column: string, value: unknown])[] = [
  ['run', 'number', LARGEST],
  ['run', 'heartbeat_timeout_ms', '-1'],
  ['run', 'heartbeat_timeout_ms', LARGEST],
  ['run', 'labels', '{"a":1}'],
  ['run', 'plan', '{'],
  ['run', 'pauses', '[["9999-12-31T23:59:59.999999Z"]]'],
  ['run', 'status_changes', '0'],
  ['run', 'config_json', '['],
  ['run', 'create_time', '2026-02-30T00:00:00.000000Z'],
  ['experiment', 'tags', '{'],
  ['experiment', 'tags', '["\\u0000"]'],
  ['experiment', 'last_run_number', LARGEST],
  ['experiment', 'last_run_number', '9007199254740991'],
  ['experiment', 'description', 'x'.repeat(2_000_000)],
  ['experiment', 'name', '\ud800'],
  ['experiment', 'surprise', 'field'],
  ['stage', 'kind', 'NOTHING'],
  ['stage', 'timings', '{"a":["now",null]}'],
  ['group', 'terminal_rollouts', LARGEST],
  ['group', 'on_success', ''],
  ['rollout', 'attempt', '4294967296'],
  ['rollout', 'retry_delay_ms', '-1'],
  ['rollout', 'lease_end_time', '9999-12-31T23:59:59.999999Z'],
  ['rollout', 'paused_us', '-1'],
  ['rollout', 'metrics', '{"a":1,"a":2}'],
  ['rollout', 'status', 'PAUSED'],
  ['rollout', 'result', '[]'],
  ['task', 'tags', 'null'],
  ['trajectory', 'writer_epoch', '-1'],
  ['trajectory', 'writer_epoch', LARGEST],
  ['trajectory', 'scored_metrics', '"value"'],
  ['trajectory', 'seal_time', '2026-01-01T00:00:00.000000Z'],
];

describeStore('values of archives', (on) => {
  /** A namespace with rows in every table, as it is exported. */
  async function furnished(): Promise<{ scene: RolloutScene; parts: ArchivePart[] }> {
    const scene = new RolloutScene(on.store);
    const run = await scene.makeRunWith(['a', 'b'], { status: 'RUNNING' });
    await furnishRollouts(scene, run);
    await scene.create();
    return { scene, parts: await exported(on.store, scene.namespace) };
  }

  it('V1: a value that its column must not have is a fault', async () => {
    const scene = new RolloutScene(on.store);
    const { id, experiment } = await scene.makeRun();
    const changes = [
      ['runs', id, 'heartbeat_timeout_ms = -1', 'heartbeat_timeout_ms = 1000'],
      ['runs', id, "labels = '{'", "labels = '{}'"],
      ['runs', id, "pauses = '[[]]'", "pauses = ''"],
      ['experiments', experiment.id, "tags = 'null'", "tags = '[]'"],
    ] as const;
    for (const [table, row, wrong, right] of changes) {
      await on.sql.rows(`update ${table} set ${wrong} where id = '${row}'`);
      const [fault, ...others] = await faultsOf(on.store);
      expect([fault?.check, fault?.message, others]).toEqual([
        'ROWS',
        expect.stringContaining(`table ${table}, row`),
        [],
      ]);
      await on.sql.rows(`update ${table} set ${right} where id = '${row}'`);
    }
    await expectVerified(on.store);
  });

  it('V6: a value that its column must not have is refused, and lists, reads and writes go on', async () => {
    const { scene, parts } = await furnished();
    await onTarget(on.engine, async (store) => {
      for (const [record, column, value] of DAMAGE) {
        const damaged = parts.map((part) => changed(part, record, column, value));
        const error: unknown = await imported(store, scene.namespace, damaged).catch((caught: unknown) => caught);
        expect(error, `${record}.${column}`).toBeInstanceOf(AnabranchError);
        const { reason, message } = error as AnabranchError;
        expect([reason, message]).toEqual(['ARCHIVE_INVALID', expect.stringContaining(`record "${record}" of `)]);
        expect(message).toContain(`"${column}"`);
      }
      await imported(store, scene.namespace, parts);
      const there = new RolloutScene(store, scene.namespace);
      expect(await there.runs()).toHaveLength((await scene.runs()).length);
      expect(await store.listExperiments(scene.namespace, {}, ALL, 'FULL')).toHaveLength(1);
      await expectVerified(store);
    });
  });

  it('V6: the next run of an experiment gets a number above those of imported ones', async () => {
    const { scene, parts } = await furnished();
    await onTarget(on.engine, async (store) => {
      const behind = parts.map((part) => changed(part, 'experiment', 'last_run_number', '0'));
      await imported(store, scene.namespace, behind);
      const there = new RolloutScene(store, scene.namespace);
      const [first] = await there.runs();
      expect((await there.make({ experiment: { id: first!.experiment.id } })).run.number).toBe(2n);
      await expectVerified(store);
    });
  });

  it('V6: a run above itself, and a stage of another run, are refused', async () => {
    const scene = new RolloutScene(on.store);
    const run = await scene.makeRunWith(['a', 'b'], { status: 'RUNNING' });
    const { run: branch } = await scene.branchOff(run, 0n);
    const { rollouts, other } = await (async () => {
      const stage = await scene.stage(branch, { status: 'RUNNING' });
      const another = await scene.stage(run, { status: 'RUNNING' });
      return { rollouts: await scene.queue(stage, 1), other: another };
    })();
    expect(rollouts).toHaveLength(1);
    const parts = await exported(on.store, scene.namespace);
    await onTarget(on.engine, async (store) => {
      const above = parts.map((part) => edited(part, `"parent":"${run.id}"`, `"parent":"${branch.id}"`));
      const foreign = parts.map((part) => changed(part, 'rollout', 'stage', other.id));
      for (const damaged of [above, foreign]) {
        await expect(imported(store, scene.namespace, damaged)).rejects.toMatchObject({ reason: 'ARCHIVE_INVALID' });
      }
      await imported(store, scene.namespace, parts);
      await expectVerified(store);
    });
  });

  it('V6: long lists continue in further records, and are imported', async () => {
    const scene = new RolloutScene(on.store);
    const { stage } = await scene.place();
    await scene.queue(stage, 1, { maxAttempts: 100 });
    // Texts of a control character, which JSON writes with six.
    for (let i = 0; i < 20; i += 1) {
      const claim = await scene.claimOne();
      await scene.release(
        tokenOf(claim),
        { message: '\u0001'.repeat(4000), metadataJson: JSON.stringify('"'.repeat(8000)) },
        { timings: many('t', { startTime: 1n, endTime: 2n }), metrics: many('m', 0.5) },
      );
    }
    const root = await scene.createWith(['a', 'b']);
    const tags = Array.from({ length: 1100 }, (_, i) => ({ name: `tag${i}`, stepNumber: 2n }));
    await scene.append(root, [wordStep(2n, 'c')], { tags });
    const parts = await exported(on.store, scene.namespace);
    const lines = archivedLines(parts);
    expect(lines.filter((line) => line.startsWith('{"record":"more"')).length).toBeGreaterThan(0);
    expect(lines.filter((line) => line.startsWith('{"record":"tags"'))).toHaveLength(1);
    await onTarget(on.engine, async (store) => {
      for (let i = 0; i < 2; i += 1) {
        const progress = await imported(store, scene.namespace, parts);
        expect(progress.identicalTrajectories).toBe(i === 0 ? 0n : progress.presentTrajectories);
        expect(archivedLines(await exported(store, scene.namespace))).toEqual(lines);
        await expectVerified(store);
      }
    });
  });

  it('V6, A5: each transaction of an import gets an iteration of the event loop of its own', async () => {
    const scene = new RolloutScene(on.store);
    const [first, ...rest] = await exported(on.store, scene.namespace);
    let [turns, isOver] = [0, false];
    const turn = () => {
      turns += 1;
      if (!isOver) setImmediate(turn);
    };
    setImmediate(turn);
    await imported(on.store, scene.namespace, [first!, { kind: 'records', text: deleted(1000) }, ...rest]);
    isOver = true;
    expect(turns).toBeGreaterThan(15);
  });
});

/** Sixty entries with long keys. */
function many<Value>(letter: string, value: Value): Map<string, Value> {
  return new Map(Array.from({ length: 60 }, (_, i) => [`${letter.repeat(100)}${i}`, value]));
}

function edited(part: ArchivePart, from: string, to: string): ArchivePart {
  return part.kind === 'records' ? { ...part, text: part.text.replace(from, to) } : part;
}

/** Sets a column of all records of a kind. */
function changed(part: ArchivePart, record: string, column: string, value: unknown): ArchivePart {
  if (part.kind !== 'records') return part;
  const lines = part.text.split('\n').map((line) => {
    if (!line.startsWith(`{"record":"${record}",`)) return line;
    return JSON.stringify({ ...(JSON.parse(line) as object), [column]: value });
  });
  return { ...part, text: lines.join('\n') };
}
