import { createHash, randomUUID } from 'node:crypto';
import { timestampDate } from '@bufbuild/protobuf/wkt';
import type { Run } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { IfExists } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { StepOrder } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, openWriter, reasonOf } from '../client/index.ts';
import { type Chain, planVersion, type StepPosition, type Stored, type StoredTrajectory } from './plan.ts';
import { readVersions, type TrajectoryKey, type Version } from './programs.ts';
import { FleImportError, type FleSource, type Row } from './source.ts';
import { PROGRAM_ID, toStep } from './step.ts';
import { bounded, cellOf, textOf } from './text.ts';

export interface ImportOptions {
  readonly source: FleSource;
  /** Name of the experiment of the runs. Created if it does not exist. */
  readonly experimentName: string;
  /** Compares the source with the store, and writes nothing. */
  readonly dryRun: boolean;
  readonly signal: AbortSignal;
  /** Called when the number of programs to import is known, and after each program is durable. */
  readonly onProgress: (progress: ImportProgress) => void;
}

export interface ImportProgress {
  readonly imported: number;
  readonly toImport: number;
}

/** What an import did with one version, or would do with `dryRun`. */
export interface ImportedVersion {
  readonly runName: string;
  /** Empty if the run does not exist, which only happens with `dryRun`. */
  readonly runId: string;
  /** Programs of this version in the source. */
  readonly programs: number;
  /** Number of programs that this import stored. The others were stored before. */
  readonly imported: number;
  /** Trajectories that this import created, without branches. */
  readonly trajectories: number;
  readonly branches: number;
}

/** Number of chains that are stored concurrently. */
const LANES = 8;
/** Rows that are read at once. A row can have a megabyte. */
const PAGE_ROWS = 16;
const LANE_UNACKED_BYTES = 4 * 1024 * 1024;
const PAGE_SIZE = 1000;

/**
 * Imports the programs of a database of FLE that are not stored yet. Creates a run for each version, a trajectory for
 * each instance and process, and branches for programs that share a parent. All ids depend only on the run and the
 * programs, so a second call continues an interrupted import. Errors: FleImportError if the runs have programs of
 * another source; nothing is written then.
 */
export async function importFle(client: AnabranchClient, options: ImportOptions): Promise<ImportedVersion[]> {
  const { source, signal, dryRun, onProgress } = options;
  const imports: VersionImport[] = [];
  for (const version of await readVersions(source, signal)) {
    imports.push(await planImport(client, version, options));
  }
  const toImport = imports.reduce((sum, { chains }) => sum + countPrograms(chains), 0);
  let imported = 0;
  onProgress({ imported, toImport });
  const onImported = () => onProgress({ imported: ++imported, toImport });
  if (!dryRun) {
    for (const each of imports) {
      await storeVersion(client, each, { ...options, onImported }).catch((error: unknown) => {
        throw conflictExplained(error, each.runName);
      });
    }
  }
  return imports.map((each) => resultOf(each, dryRun));
}

/** The programs of one version, and the plan for those that are not stored yet. */
interface VersionImport {
  readonly version: Version;
  readonly runName: string;
  readonly runId: string;
  readonly runExists: boolean;
  readonly chains: readonly Chain[];
}

async function planImport(
  client: AnabranchClient,
  version: Version,
  { source, experimentName, signal }: ImportOptions,
): Promise<VersionImport> {
  const runName = bounded(`fle-${version.version ?? 'none'}`);
  const run = await findRun(client, runName, experimentName, signal);
  const runId = run?.id ?? randomUUID();
  const stored = run === undefined ? EMPTY : await readStored(client, run.id, signal);
  requireSameSource(version, stored, `Run "${runName}" of experiment "${experimentName}"`, source);
  const chains = planVersion(version.programs, stored, (name) => uuidOf(`${runId} ${name}`));
  return { version, runName, runId, runExists: run !== undefined, chains };
}

async function findRun(
  client: AnabranchClient,
  runName: string,
  experimentName: string,
  signal: AbortSignal,
): Promise<Run | undefined> {
  try {
    return (await client.runs.getRun({ runName, experimentName }, { signal })).run;
  } catch (error) {
    if (['RUN_NOT_FOUND', 'EXPERIMENT_NOT_FOUND'].includes(reasonOf(error) ?? '')) return undefined;
    throw error;
  }
}

interface StoredProgram extends StepPosition {
  readonly createTime: number | undefined;
}

interface StoredPrograms extends Stored {
  readonly programs: ReadonlyMap<number, StoredProgram>;
}

const EMPTY: StoredPrograms = { trajectories: new Map(), programs: new Map() };

/**
 * Trajectories are read before steps. A concurrent import may then store programs that this one does not know. Storing
 * them again fails, because their position or id is taken.
 */
async function readStored(client: AnabranchClient, runId: string, signal: AbortSignal): Promise<StoredPrograms> {
  const trajectories = await readTrajectories(client, runId, signal);
  const programs = new Map<number, StoredProgram>();
  const list = { runId, pageSize: PAGE_SIZE, order: StepOrder.NUMBER };
  for (let pageToken = ''; ; ) {
    const page = await client.trajectories.listSteps({ ...list, pageToken }, { signal });
    for (const { trajectoryId, step } of page.steps) {
      const id = step?.metrics[PROGRAM_ID];
      if (step === undefined || id === undefined || !trajectories.has(trajectoryId)) continue;
      const createTime = step.endTime === undefined ? undefined : timestampDate(step.endTime).getTime();
      programs.set(id, { trajectoryId, stepNumber: step.stepNumber, createTime });
    }
    pageToken = page.nextPageToken;
    if (pageToken === '') return { programs, trajectories };
  }
}

async function readTrajectories(
  client: AnabranchClient,
  runId: string,
  signal: AbortSignal,
): Promise<Map<string, StoredTrajectory>> {
  const trajectories = new Map<string, StoredTrajectory>();
  for (let pageToken = ''; ; ) {
    const page = await client.trajectories.listTrajectories({ runId, pageSize: PAGE_SIZE, pageToken }, { signal });
    for (const { id, nextStepNumber, status } of page.trajectories) {
      trajectories.set(id, { nextStepNumber, sealed: status !== Status.RUNNING });
    }
    pageToken = page.nextPageToken;
    if (pageToken === '') return trajectories;
  }
}

/** Programs of two sources have the same ids. Their times tell them apart. */
function requireSameSource({ programs }: Version, stored: StoredPrograms, run: string, source: FleSource): void {
  for (const [id, { createTime }] of stored.programs) {
    const program = programs.get(id);
    if (program === undefined || program.createTime === createTime) continue;
    throw new FleImportError(
      `${run} holds program ${id} of another database: it was created at ${timeText(createTime)} there, and at ` +
        `${timeText(program.createTime)} in ${source.description}. Choose another --experiment.`,
    );
  }
}

function timeText(time: number | undefined): string {
  return time === undefined ? 'an unknown time' : new Date(time).toISOString();
}

interface Storing extends ImportOptions {
  readonly onImported: () => void;
}

async function storeVersion(client: AnabranchClient, each: VersionImport, options: Storing): Promise<void> {
  if (!each.runExists) await createRun(client, each, options);
  const failed = new AbortController();
  const signal = AbortSignal.any([options.signal, failed.signal]);
  const stored = new Map(each.chains.map((chain) => [chain, Promise.withResolvers<void>()]));
  const waiting = each.chains.values();
  const lane = async () => {
    for (const chain of waiting) {
      // Lanes take chains in order, so another lane already works on the chain that this one waits for.
      if (chain.after !== undefined) await stored.get(chain.after)?.promise;
      signal.throwIfAborted();
      await storeChain(client, chain, each.runId, { ...options, signal });
      stored.get(chain)?.resolve();
    }
  };
  const stopOthers = (error: unknown) => {
    failed.abort(error);
    for (const { resolve } of stored.values()) resolve();
  };
  await Promise.allSettled(Array.from({ length: LANES }, () => lane().catch(stopOthers)));
  signal.throwIfAborted();
}

async function createRun(client: AnabranchClient, each: VersionImport, options: Storing): Promise<void> {
  const { source, experimentName, signal } = options;
  const [first] = each.version.programs.values();
  const [row] = first === undefined ? [] : await source.readRows([first.id]);
  const models = new Set([...each.version.programs.values()].map(({ trajectoryKey }) => trajectoryKey.model));
  await ensureExperiment(client, experimentName, signal);
  await client.runs.createRun(
    {
      runId: each.runId,
      experimentName,
      name: each.runName,
      description: row === undefined ? '' : bounded(textOf(cellOf(row, 'version_description')) ?? '', 16 * 1024),
      labels: labelsOf({
        version: each.version.version,
        model: models.size === 1 ? first?.trajectoryKey.model : undefined,
      }),
      initialStatus: Status.RUNNING,
    },
    { signal },
  );
}

async function ensureExperiment(client: AnabranchClient, name: string, signal: AbortSignal): Promise<void> {
  const experiment = { name, environmentName: 'Factorio Learning Environment', ifExists: IfExists.RETURN_EXISTING };
  await client.runs.createExperiment(experiment, { signal });
}

async function storeChain(client: AnabranchClient, chain: Chain, runId: string, options: Storing): Promise<void> {
  const { source, signal, onImported } = options;
  await createTrajectory(client, chain, runId, signal);
  const { trajectoryId, firstStepNumber: expectedNextStepNumber } = chain;
  const bounds = { maxUnackedBytes: LANE_UNACKED_BYTES, signal };
  const writer = await openWriter(client, { trajectoryId, expectedNextStepNumber, ...bounds });
  let failure: unknown;
  const failedWith = (error: unknown) => {
    failure ??= error;
  };
  try {
    for (let from = 0; from < chain.ids.length && failure === undefined; from += PAGE_ROWS) {
      for (const row of await source.readRows(chain.ids.slice(from, from + PAGE_ROWS))) {
        await writer.ready();
        writer.append(toStep(row)).then(onImported, (error) => failedWith(explained(error, row)));
      }
    }
  } catch (error) {
    failedWith(error);
  }
  await writer.close().catch(failedWith);
  if (failure !== undefined) throw failure;
}

async function createTrajectory(client: AnabranchClient, chain: Chain, runId: string, signal: AbortSignal) {
  const { trajectoryId, start, trajectoryKey, ids } = chain;
  if (start === 'exists') return;
  const labels = labelsOf({
    model: trajectoryKey.model,
    version: trajectoryKey.version,
    instance: trajectoryKey.instance,
    process_id: trajectoryKey.processId,
  });
  if (start === 'root') {
    const taskId = bounded(trajectoryKey.taskKey ?? '');
    const root = { stepNumber: 0n };
    await client.trajectories.createTrajectory(
      { trajectoryId, runId, name: nameOf(trajectoryKey), taskId, labels, root },
      { signal },
    );
  } else {
    const name = bounded(`${nameOf(trajectoryKey)}, program ${ids[0]}`);
    await client.trajectories.branchTrajectory({ ...start, branchId: trajectoryId, name, labels }, { signal });
  }
}

/** `fle-1, instance 0, process 3` */
function nameOf({ version, instance, processId }: TrajectoryKey): string {
  const parts = [`fle-${version ?? 'none'}`, `instance ${instance ?? 'none'}`];
  return bounded([...parts, ...(processId === undefined ? [] : [`process ${processId}`])].join(', '));
}

function labelsOf(labels: Readonly<Record<string, string | undefined>>): Record<string, string> {
  const set = Object.entries(labels).flatMap(([key, text]) => (text === undefined ? [] : [[key, bounded(text)]]));
  return Object.fromEntries(set);
}

/** Errors that mean that another import stored something since this one read the run. */
const CONFLICTS = new Set(['RUN_EXISTS', 'TRAJECTORY_EXISTS', 'UNEXPECTED_POSITION', 'WRITER_FENCED']);

function conflictExplained(error: unknown, runName: string): unknown {
  if (!CONFLICTS.has(reasonOf(error) ?? '')) return error;
  const text = `Another import writes to run "${runName}". Run the command again when the other import has ended. If there is none, a trajectory of an earlier import was deleted while branches need its steps: import into another --experiment.`;
  return new FleImportError(text, { cause: error });
}

function explained(error: unknown, row: Row): unknown {
  if (reasonOf(error) !== 'MESSAGE_TOO_LARGE') return error;
  return new FleImportError(
    `Program ${textOf(cellOf(row, 'id'))} is too large for a step: ${(error as Error).message}.`,
  );
}

/** Returns a UUID that depends only on the text (version 8, RFC 9562). */
function uuidOf(text: string): string {
  const hex = createHash('sha256').update(text).digest('hex');
  const variant = ((Number.parseInt(hex[16] ?? '0', 16) & 3) | 8).toString(16);
  return [
    hex.slice(0, 8),
    hex.slice(8, 12),
    `8${hex.slice(13, 16)}`,
    variant + hex.slice(17, 20),
    hex.slice(20, 32),
  ].join('-');
}

function resultOf({ version, runName, runId, runExists, chains }: VersionImport, dryRun: boolean): ImportedVersion {
  return {
    runName,
    runId: dryRun && !runExists ? '' : runId,
    programs: version.programs.size,
    imported: countPrograms(chains),
    trajectories: chains.filter(({ start }) => start === 'root').length,
    branches: chains.filter(({ start }) => typeof start === 'object').length,
  };
}

function countPrograms(chains: readonly Chain[]): number {
  return chains.reduce((sum, { ids }) => sum + ids.length, 0);
}
