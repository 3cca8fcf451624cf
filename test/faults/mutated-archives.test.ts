import { hash, randomUUID } from 'node:crypto';
import { Code, ConnectError } from '@connectrpc/connect';
import { describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { writeArchive } from '../../src/archive/write.ts';
import { type AnabranchClient, connectClient, reasonOf } from '../../src/client/index.ts';
import type { ArchivePart } from '../../src/domain/archive.ts';
import { AnabranchError } from '../../src/domain/errors.ts';
import { checkedPart } from '../../src/store/sql/upkeep/archive/checked_parts.ts';
import { exported } from '../store/archived.ts';
import { furnishRollouts } from '../store/furnish_rollouts.ts';
import { openOn } from '../store/on_store.ts';
import { RolloutScene } from '../store/rollout_scene.ts';
import { ENGINES } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { makeStep, newState, smallRef } from '../support/steps.ts';
import { startTestServer } from '../support/test-server.ts';
import { reportFigures } from './figures.ts';

type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
type Record = { [name: string]: Json };

/** Rows of every table that archives have, with values in most columns. */
async function furnished(): Promise<ArchivePart[]> {
  const database = await createMigratedDatabase('sqlite');
  const store = await openOn(database);
  try {
    const scene = new RolloutScene(store, 'default');
    const plan = {
      stagePlans: [{ kind: 'EVAL', stages: 2, groupsPerStage: 2, groupSize: 2, maxTurns: 9, substeps: 1 }],
      concurrency: 1,
    } as const;
    const run = await scene.makeRunWith(['a', 'b'], {
      status: 'RUNNING',
      labels: new Map([['a', 'b']]),
      plan,
      failWhenStale: true,
    });
    await furnishRollouts(scene, run);
    await scene.branchOff(run, 0n);
    const stage = await scene.stage(run, { kind: 'TRAIN_STEP', status: 'RUNNING', number: 5n });
    await scene.queue(stage, 2, { labels: new Map([['x', 'y']]), maxAttempts: 3 });
    await scene.claimOne({ stageId: stage.id });
    await store.updateStage('default', stage.id, {
      timings: new Map([['t', { startTime: 1_000_000n, endTime: undefined }]]),
    });
    await store.logMetrics('default', run.id, [{ stageId: stage.id, name: 'loss', metricStep: 3n, value: 0.5 }]);
    await scene.move(run, 'pause');
    await scene.move(run, 'resume');
    const root = await scene.create({ scoredMetrics: ['value'] });
    await scene.append(
      root,
      [0, 1, 2].map((i) =>
        makeStep(BigInt(i), {
          reward: i,
          metrics: new Map([['value', i]]),
          states: [smallRef(newState('small'), 'env')],
        }),
      ),
    );
    await store.setTag('default', root.id, 'best', 1n, undefined);
    const leaf = await scene.branch(root, 1n);
    await scene.append(leaf, [makeStep(2n)]);
    await scene.seal(leaf, 'FAILED', 'why');
    return await exported(store, 'default');
  } finally {
    await store.close();
    await database.drop();
  }
}

const LARGEST = 2n ** 63n - 1n;
const TEXTS: Json[] = [
  ...[
    '',
    'x',
    '{',
    '[',
    '{}',
    '[]',
    'null',
    '[null]',
    '[1]',
    '{"a":1}',
    '{"a":"NaN"}',
    '{"a":"x"}',
    '{"a":[null,null]}',
  ],
  ...[
    '["\\u0000"]',
    '["\\ud800"]',
    '{"a":"\\u0000"}',
    '{"a":1,"a":2}',
    ' {}',
    '[[]]',
    '\u0000',
    '\ud800',
    'x'.repeat(600_000),
  ],
  ...['PAUSED', 'COMPLETED', 'RUNNING', 'PENDING', 'EVAL', '\u001b[31m', '[["2026-01-01T00:00:00.000000Z"]]'],
];
const INTEGERS: Json[] = [
  0n,
  -1n,
  1n,
  2n ** 31n,
  10n ** 12n,
  2n ** 53n - 1n,
  2n ** 53n,
  LARGEST,
  -LARGEST - 1n,
  LARGEST + 1n,
].map(String);
const TIMES: Json[] = [
  ...['0000-01-01', '0001-01-01', '1969-12-31', '2026-02-30', '2199-12-31', '2200-01-01', '9999-12-31'].map(
    (day) => `${day}T23:59:59.999999Z`,
  ),
  ...['2026-01-01', 'now', '2026-01-01T00:00:00Z', '+12026-01-01T00:00:00.000000Z', '2026-01-01T24:00:00.000000Z'],
];
const REALS: Json[] = [0, -1, 1e308, -1e308, 0.5, 101, 'NaN', 'Infinity', '-Infinity', '-0', 'x'];
const OTHERS: Json[] = [null, true, false, 0, 1.5, [], {}, ['x'], 'no'];
const IDS: Json[] = ['no', '', randomUUID(), '0192C7A4-7B1E-7D3C-9B5A-3F1E2D4C5B6A'];

function mutationsOf(value: Json): Json[] {
  if (typeof value === 'boolean') return OTHERS;
  if (typeof value === 'number') return [...REALS, ...OTHERS];
  if (typeof value !== 'string') return [...OTHERS, ...TEXTS, ...INTEGERS, ...REALS, ...TIMES, ...IDS];
  if (/^-?\d+$/.test(value)) return [...INTEGERS, ...OTHERS];
  if (/^\d{4}-\d\d-\d\dT/.test(value)) return [...TIMES, ...OTHERS];
  if (/^[0-9a-f]{8}-/.test(value)) return [...IDS, ...OTHERS];
  return [...TEXTS, ...OTHERS];
}

interface Mutation {
  readonly place: string;
  readonly line: number;
  readonly text: string;
}

/** Every value of one record of each kind, and of one object in each of its lists, replaced by others. */
function mutations(lines: readonly string[]): Mutation[] {
  const seen = new Set<string>();
  return lines.flatMap((line, at) => {
    const record = JSON.parse(line) as Record;
    if (['archive', 'end', 'trajectory_end'].includes(record.record as string)) return [];
    return [...fieldsOf(record, `${record.record} ${record.status ?? ''}`)].flatMap(({ place, owner, name }) => {
      if (name === 'record' || seen.has(place)) return [];
      seen.add(place);
      const original = owner[name]!;
      const texts = mutationsOf(original).map((value): Mutation => {
        owner[name] = value;
        return {
          place: `${place} = ${JSON.stringify(value).slice(0, 60)}`,
          line: at,
          text: `${JSON.stringify(record)}\n`,
        };
      });
      owner[name] = original;
      return texts;
    });
  });
}

function* fieldsOf(record: Record, place: string): Generator<{ place: string; owner: Record; name: string }> {
  for (const [name, value] of Object.entries(record)) {
    yield { place: `${place}.${name}`, owner: record, name };
    if (!Array.isArray(value)) continue;
    for (const item of value)
      if (typeof item === 'object' && item !== null && !Array.isArray(item))
        yield* fieldsOf(item, `${place}.${name}[]`);
  }
}

function isRefusedAtOnce(text: string): boolean {
  try {
    for (const _ of checkedPart({ kind: 'records', text }));
    return false;
  } catch (error) {
    expect(error).toBeInstanceOf(AnabranchError);
    return true;
  }
}

/** The archive with one line replaced, all ids and names changed to new ones, and digests that match. */
async function bytesWith(
  parts: readonly ArchivePart[],
  { line: changed, text }: Pick<Mutation, 'line' | 'text'>,
): Promise<Buffer> {
  const ids = new Map<string, string>();
  const mark = randomUUID().slice(0, 8);
  const renamed = (line: string) =>
    line
      .replaceAll(/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g, (id) => {
        if (!ids.has(id)) ids.set(id, randomUUID());
        return ids.get(id)!;
      })
      .replaceAll('"furnished"', `"furnished ${mark}"`)
      .replaceAll('"name":"default"', `"name":"default ${mark}"`);
  let [at, begun] = [0, ''];
  async function* rewritten(): AsyncGenerator<ArchivePart> {
    for (const part of parts) {
      if (part.kind === 'steps') yield { ...part, trajectoryId: ids.get(part.trajectoryId)! };
      if (part.kind === 'state' || part.kind === 'small_states') yield part;
      if (part.kind !== 'records') continue;
      let all = '';
      for (const original of linesIn(part.text)) {
        let line = renamed(at === changed ? text : original);
        at += 1;
        if (line.startsWith('{"record":"trajectory",')) begun = line;
        if (line.startsWith('{"record":"trajectory_end"')) {
          const end = JSON.parse(line) as Record;
          line = `${JSON.stringify({ ...end, digest: hash('sha256', `${begun}${end.steps_digest}`, 'hex') })}\n`;
        }
        all += line;
      }
      yield { kind: 'records', text: all };
    }
  }
  const chunks: Uint8Array[] = [];
  for await (const chunk of writeArchive(rewritten())) chunks.push(chunk);
  return Buffer.concat(chunks);
}

function linesIn(text: string): string[] {
  return text
    .split('\n')
    .slice(0, -1)
    .map((line) => `${line}\n`);
}

const FAULTS: ReadonlySet<Code> = new Set([
  Code.Internal,
  Code.Unknown,
  Code.DataLoss,
  Code.Unavailable,
  Code.DeadlineExceeded,
]);

/** Calls everything that reads or writes what was imported. Refusals are answers; faults of the server are not. */
class Battery {
  readonly faults: string[] = [];
  readonly #client: AnabranchClient;

  constructor(client: AnabranchClient) {
    this.#client = client;
  }

  async #call<T>(name: string, call: () => Promise<T>): Promise<T | undefined> {
    try {
      return await call();
    } catch (error) {
      const { code, message } = ConnectError.from(error);
      if (FAULTS.has(code) || reasonOf(error) === undefined) this.faults.push(`${name}: ${message}`);
      return undefined;
    }
  }

  async read(): Promise<void> {
    const { runs, rollouts, trajectories, admin } = this.#client;
    const pages = async <Answer extends { nextPageToken: string }>(
      name: string,
      list: (pageToken: string) => Promise<Answer>,
    ) => {
      const all: Answer[] = [];
      for (let token = ''; ; ) {
        const answer = await this.#call(name, () => list(token));
        if (answer !== undefined) all.push(answer);
        if (answer === undefined || answer.nextPageToken === '') return all;
        token = answer.nextPageToken;
      }
    };
    const labels = { a: 'b' };
    await pages('listExperiments', (pageToken) => runs.listExperiments({ pageToken, view: 2 }));
    await pages('listExperiments by tag', (pageToken) => runs.listExperiments({ pageToken, tags: ['x'] }));
    await pages('listRuns', (pageToken) => runs.listRuns({ pageToken, view: 2 }));
    await pages('listRuns by label', (pageToken) => runs.listRuns({ pageToken, labels }));
    await pages('listTasks', (pageToken) => rollouts.listTasks({ pageToken, view: 2 }));
    await pages('listTasks by tag', (pageToken) => rollouts.listTasks({ pageToken, tags: ['x'] }));
    await pages('listTrajectories', (pageToken) => trajectories.listTrajectories({ pageToken }));
    await pages('listTrajectories by label', (pageToken) => trajectories.listTrajectories({ pageToken, labels }));
    await pages('listRollouts', (pageToken) => rollouts.listRollouts({ pageToken, view: 2 }));
    await pages('listRollouts by label', (pageToken) => rollouts.listRollouts({ pageToken, labels }));
    await this.#call('summarize', () => runs.summarize({}));
    await this.#call('stats', () => admin.getDatabaseStats({}));
  }

  async use(ids: ReadonlyMap<string, readonly string[]>): Promise<void> {
    const { runs, rollouts, trajectories } = this.#client;
    const each = async (kind: string, use: (id: string) => readonly (readonly [string, () => Promise<unknown>])[]) => {
      for (const id of ids.get(kind) ?? [])
        for (const [name, call] of use(id)) await this.#call(`${name} of ${kind}`, call);
    };
    await each('experiment', (experimentId) => [
      ['get', () => runs.getExperiment({ experimentId, view: 2 })],
      ['create a run', () => runs.createRun({ experimentId })],
      ['create a run', () => runs.createRun({ experimentId })],
      [
        'update',
        () => runs.updateExperiment({ experimentId, description: 'd', updateMask: { paths: ['description'] } }),
      ],
    ]);
    await each('run', (runId) => [
      ['get', () => runs.getRun({ runId, view: 2 })],
      ['tree', () => runs.getRunTree({ runId })],
      ['progress', () => runs.getRun({ runId, progress: true })],
      ['stages', () => runs.listStages({ runId, view: 2 })],
      ['history', () => runs.listStatusChanges({ runId })],
      ['metrics', () => drained(runs.readMetrics({ runIds: [runId] }))],
      ['log metrics', () => runs.logMetrics({ runId, points: [{ key: 'loss', metricStep: 9n, value: 1 }] })],
      ['environments', () => rollouts.listEnvironments({ runId })],
      ['heartbeat', () => runs.heartbeatRun({ runId })],
      ['update', () => runs.updateRun({ runId, description: 'd', updateMask: { paths: ['description'] } })],
      ['branch', () => runs.branchRun({ runId, stepNumber: 0n })],
      ['pause', () => runs.pauseRun({ runId })],
      ['leases', () => rollouts.listRollouts({ runId, view: 2 })],
      ['resume', () => runs.resumeRun({ runId })],
      ['make a stage', () => runs.getOrCreateStage({ runId, kind: 2, number: 1000n })],
    ]);
    await each('stage', (stageId) => [
      ['get', () => runs.getStage({ stageId, view: 2 })],
      ['history', () => runs.listStatusChanges({ stageId })],
      ['groups', () => rollouts.listGroups({ stageId, view: 2 })],
      ['create rollouts', () => rollouts.createRollouts({ stageId, rollouts: [{ groupNumber: 0n }] })],
      [
        'update',
        () => runs.updateStage({ stageId, completedSubsteps: 1n, updateMask: { paths: ['completed_substeps'] } }),
      ],
    ]);
    await each('environment', (environmentId) => [
      ['get', () => rollouts.listEnvironments({ environmentIds: [environmentId] })],
      ['history', () => runs.listStatusChanges({ environmentId })],
      [
        'complete',
        async () => {
          const { environments } = await rollouts.listEnvironments({ environmentIds: [environmentId] });
          const runId = environments[0]?.runId;
          if (runId === undefined) return undefined;
          return rollouts.upsertEnvironment({ environmentId, runId, status: Status.COMPLETED });
        },
      ],
    ]);
    await each('group', (groupId) => [
      ['get', () => rollouts.getGroup({ groupId, view: 2 })],
      [
        'update',
        async () => {
          const { group } = await rollouts.getGroup({ groupId });
          return rollouts.upsertGroup({ stageId: group!.stageId, number: group!.number, metadataJson: '{}' });
        },
      ],
    ]);
    await each('rollout', (rolloutId) => [
      ['get', () => rollouts.getRollout({ rolloutId })],
      ['history', () => runs.listStatusChanges({ rolloutId })],
      ['overrides', () => rollouts.listValidationOverrides({ rolloutId })],
      ['heartbeat', () => rollouts.heartbeatRollouts({ leases: [{ rolloutId, attempt: 1 }] })],
      ['phase', () => rollouts.updateRollout({ rolloutId, attempt: 1, phase: 'p', updateMask: { paths: ['phase'] } })],
      ['update', () => rollouts.updateRollout({ rolloutId, priority: 3, updateMask: { paths: ['priority'] } })],
      ['release', () => rollouts.releaseRollout({ rolloutId, attempt: 1 })],
      ['claim', () => rollouts.claimRollouts({ rolloutIds: [rolloutId], workerId: 'w', maxRollouts: 1 })],
      ['complete', () => rollouts.completeRollout({ rolloutId, attempt: 2, result: { reward: 1 } })],
      ['complete', () => rollouts.completeRollout({ rolloutId, attempt: 1, result: { reward: 1 } })],
      ['override', () => rollouts.overrideValidation({ rolloutId, success: true, reason: 'r' })],
      ['retry', () => rollouts.retryRollout({ rolloutId, attempt: 1 })],
      ['get', () => rollouts.getRollout({ rolloutId })],
    ]);
    await each('task', (taskId) => [
      ['get', () => rollouts.getTask({ taskId })],
      ['upsert', () => rollouts.upsertTasks({ tasks: [{ id: taskId, description: 'd' }] })],
    ]);
    await each('trajectory', (trajectoryId) => [
      ['get', () => trajectories.getTrajectory({ trajectoryId })],
      ['history', () => runs.listStatusChanges({ trajectoryId })],
      ['lineage', () => trajectories.getLineage({ trajectoryId })],
      ['tree', () => trajectories.getTree({ trajectoryId })],
      ['tags', () => trajectories.listTags({ trajectoryId })],
      ['step', () => trajectories.getStep({ trajectoryId, stepNumber: 0n })],
      ['steps', () => trajectories.listSteps({ trajectoryId })],
      [
        'open',
        () =>
          trajectories.appendBatch({ entries: [{ trajectoryId, writerId: 'w', takeOverEpoch: 2n ** 53n, steps: [] }] }),
      ],
      ['branch', () => trajectories.branchTrajectory({ trajectoryId, stepNumber: 0n })],
      ['seal', () => trajectories.sealTrajectory({ trajectoryId, seal: { status: 5 } })],
    ]);
    await each('run', (runId) => [
      ['complete', () => runs.completeRun({ runId })],
      ['reopen', () => runs.reopenRun({ runId })],
      ['cancel', () => runs.cancelRun({ runId, cancelRollouts: true })],
    ]);
  }
}

/** Ids of the resources of an archive, by kind. */
function idsIn(bytes: readonly ArchivePart[]): ReadonlyMap<string, readonly string[]> {
  const ids = new Map<string, string[]>();
  for (const part of bytes) {
    if (part.kind !== 'records') continue;
    for (const line of linesIn(part.text)) {
      const { record, id } = JSON.parse(line) as Record;
      if (typeof id === 'string') ids.set(record as string, [...(ids.get(record as string) ?? []), id]);
    }
  }
  return ids;
}

async function drained(answers: AsyncIterable<unknown>): Promise<void> {
  for await (const _ of answers);
}

async function* chunksOf(bytes: Uint8Array): AsyncGenerator<{ chunk: Uint8Array }> {
  yield { chunk: bytes };
}

async function partsOf(bytes: Buffer): Promise<ArchivePart[]> {
  const { readArchive } = await import('../../src/archive/read.ts');
  const parts: ArchivePart[] = [];
  async function* once(): AsyncGenerator<Uint8Array> {
    yield bytes;
  }
  for await (const part of readArchive(once())) parts.push(part);
  return parts;
}

describe.each(ENGINES)('mutated archives, on %s', (engine) => {
  it('V6: a changed value is refused, or everything can be read, written and verified afterwards', async () => {
    const parts = await furnished();
    const lines = parts.flatMap((part) => (part.kind === 'records' ? linesIn(part.text) : []));
    const all = mutations(lines);
    const left = all.filter(({ text }) => !isRefusedAtOnce(text));
    const some = left.filter((_, i) => i % dose(300, 30) === 0);
    await using server = await startTestServer({ engine });
    const client = connectClient({ address: server.url });
    const faults: string[] = [];
    let [imported, refused] = [0, 0];
    const unchanged = { place: 'nothing', line: -1, text: '' };
    for (const mutation of [unchanged, ...some, unchanged]) {
      const bytes = await bytesWith(parts, mutation);
      const error: unknown = await client.admin.importArchive(chunksOf(bytes)).then(
        () => undefined,
        (caught: unknown) => caught,
      );
      if (error !== undefined) {
        refused += 1;
        const reason = reasonOf(error);
        if (reason !== 'ARCHIVE_INVALID' && reason !== 'IMPORT_CONFLICT')
          faults.push(`${mutation.place}: ${(error as Error).message}`);
        if (mutation === unchanged) faults.push(`unchanged: ${(error as Error).message}`);
      } else imported += 1;
      const battery = new Battery(client);
      await battery.use(idsIn(await partsOf(bytes)));
      if (imported % 20 === 0) await battery.read();
      faults.push(...battery.faults.map((fault) => `${mutation.place}: ${fault}`));
    }
    const battery = new Battery(client);
    await battery.read();
    faults.push(...battery.faults);
    for await (const { faults: found } of client.admin.verifyDatabase({}))
      faults.push(...found.map(({ message }) => message));
    client.close();
    expect(faults).toEqual([]);
    expect(all.length).toBeGreaterThan(1000);
    await reportFigures(`mutated archives, on ${engine}`, {
      mutations: all.length,
      'refused by the table of columns': all.length - left.length,
      imported,
      'refused later': refused,
    });
  });
});
