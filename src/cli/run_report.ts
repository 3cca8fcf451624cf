/** Draws a report of one run: head, config, stages, metrics, branches. */
import { type DescMessage, type MessageShape, toJson } from '@bufbuild/protobuf';
import { type MetricSeries, type Progress, type Run, RunSchema, type Stage } from '../../gen/es/anabranch/v1/run_pb.js';
import { counted, cut, fill, numbersText, type Paint, printable, shortNumber, widthOf } from './columns.ts';
import { seriesLines } from './metric_lines.ts';
import {
  countText,
  durationText,
  kindsText,
  leftText,
  percentText,
  progressBar,
  rolloutsText,
  secondsOf,
  timeText,
  tookText,
} from './progress.ts';
import { type RolloutParts, rolloutsTable } from './rollouts_table.ts';
import { stageLines } from './stage_lines.ts';
import { colourOf, runStatus } from './status.ts';
import { drawTree, runItems } from './tree_drawing.ts';

/** Everything that the report shows. */
export interface RunParts {
  /** In the FULL view. */
  readonly run: Run;
  readonly progress: Progress | undefined;
  /** The newest stages, in order of creation. */
  readonly stages: readonly Stage[];
  /** Whether the run has older stages. */
  readonly earlierStages: boolean;
  readonly series: readonly MetricSeries[];
  /** Stages with their groups, and with their rollouts if these are listed. */
  readonly rollouts: readonly RolloutParts[];
  /** Whether the run has rollouts that are not listed, although rollouts are. */
  readonly moreRollouts: boolean;
  /** All runs of the run's tree, including itself. */
  readonly tree: readonly Run[];
  /** Shows only these metrics. Empty: all. */
  readonly keys: readonly string[];
}

interface ReportOptions {
  /** Maximum width of a line. */
  readonly columns: number;
  readonly paint: Paint;
  /** Maximum number of listed stages. */
  readonly stages: number;
}

const BAR_COLUMNS = 30;

/** Returns the lines, without line ends. Empty sections are left out. */
export function runReport(parts: RunParts, options: ReportOptions): string[] {
  const { run, tree } = parts;
  const { paint, columns } = options;
  const sections: readonly (readonly [string, readonly string[]])[] = [
    ['config', configLines(run, columns - 2)],
    ['stages', stageLines(parts, { ...options, columns: columns - 2 })],
    ['groups', rolloutLines(parts, { ...options, columns: columns - 2 })],
    ['metrics', seriesLines(parts, { ...options, columns: columns - 2 })],
  ];
  const branches =
    tree.length > 1 ? drawTree(runItems(tree), { noun: 'run', columns, paint, beside: 'bars', here: run.id }) : [];
  return [
    titleLine(run, options),
    ...headLines(parts, options),
    ...sections.flatMap(([title, lines]) =>
      lines.length === 0 ? [] : ['', paint.dim(title), ...lines.map((line) => `  ${line}`)],
    ),
    ...(branches.length === 0 ? [] : ['', ...branches]),
  ];
}

function rolloutLines({ rollouts, moreRollouts }: RunParts, options: ReportOptions): string[] {
  if (rollouts.length === 0) return [];
  const more = moreRollouts ? ['… more rollouts; --limit N lists more'] : [];
  return [...rolloutsTable(rollouts, options), ...more];
}

/** Name on the left, status on the right. */
function titleLine(run: Run, { columns, paint }: ReportOptions): string {
  const status = runStatus(run);
  const name = fill(printable(run.name), columns - widthOf(status) - 1);
  return `${paint.bold(name)} ${colourOf(status, paint)(status)}`;
}

/** Fields that the report shows in a way of their own, or leaves out: ids and numbers that say nothing to a reader. */
const DRAWN = new Set<FieldOf<typeof RunSchema>>([
  ...(['id', 'number', 'experimentId', 'experimentName', 'name', 'description', 'configJson', 'plan'] as const),
  ...(['configOverridesJson', 'removedConfigPaths', 'resultJson', 'labels', 'treeId', 'parentId'] as const),
  ...(['branchPoint', 'mainTrajectoryId', 'nextStepNumber', 'rewardSum', 'metrics', 'heartbeatTimeout'] as const),
  ...(['failWhenStale', 'stale', 'heartbeatTime', 'status', 'statusMessage', 'phase'] as const),
  ...(['startTime', 'endTime', 'createTime', 'updateTime', 'revision'] as const),
]);

function headLines({ run, progress, tree }: RunParts, options: ReportOptions): string[] {
  const facts: readonly Fact[] = [
    ['progress', progress === undefined ? '' : progressFact(progress)],
    ...(progress === undefined ? [] : countFacts(progress)),
    ['phase', run.phase],
    ['message', run.statusMessage],
    ['description', run.description],
    ['id', run.id],
    ['experiment', run.experimentName],
    ['number', String(run.number)],
    ['branched', branchFact(run, tree)],
    ['trajectory', trajectoryFact(run)],
    ['labels', labelsText(run.labels)],
    ['numbers', numbersText(run.metrics)],
    ['created', run.createTime === undefined ? '' : timeText(run.createTime)],
    ['began', run.startTime === undefined ? '' : timeText(run.startTime)],
    ['ended', endFact(run)],
    ['heartbeat', heartbeatFact(run)],
    ['result', run.resultJson],
    ...otherFacts(RunSchema, run, DRAWN),
  ];
  return factLines(facts, options);
}

function progressFact(progress: Progress): string {
  const { percent } = progress;
  if (percent === undefined) return '';
  const left = leftText(progress);
  const bar = `${progressBar(percent, BAR_COLUMNS)} ${percentText(percent).trimStart()}`;
  return left === undefined ? bar : `${bar}, ${left} left`;
}

function countFacts(progress: Progress): [string, string][] {
  const { turnsDone, turnsExpected, substepsDone, substepsExpected } = progress;
  return [
    ['turns', countText(turnsDone, turnsExpected)],
    ['rollouts', rolloutsText(progress)],
    ['substeps', countText(substepsDone, substepsExpected)],
    ['stages', kindsText(progress)],
  ];
}

function branchFact({ parentId, branchPoint }: Run, tree: readonly Run[]): string {
  if (parentId === '') return '';
  const parent = tree.find(({ id }) => id === parentId);
  return `from ${parent?.name ?? 'a deleted run'} at step ${branchPoint} (${parentId})`;
}

function trajectoryFact({ mainTrajectoryId, nextStepNumber = 0n, rewardSum = 0 }: Run): string {
  if (mainTrajectoryId === '') return '';
  return `${mainTrajectoryId}, ${counted(nextStepNumber, 'step')}, reward ${shortNumber(rewardSum)}`;
}

function endFact({ startTime, endTime }: Run): string {
  if (endTime === undefined) return '';
  const took = tookText(startTime, endTime);
  return timeText(endTime) + (took === undefined ? '' : `, after ${took}`);
}

/** The last heartbeat, if there was one, or if the run requires one. */
function heartbeatFact({ heartbeatTime, heartbeatTimeout, stale, failWhenStale }: Run): string {
  if (heartbeatTime === undefined && !stale) return '';
  const last = heartbeatTime === undefined ? 'none' : timeText(heartbeatTime);
  const timeout = heartbeatTimeout === undefined ? '' : durationText(secondsOf(heartbeatTimeout));
  const then = failWhenStale ? ', then it is failed' : '';
  return stale ? `${last}: none for more than ${timeout}` : `${last}; stale after ${timeout}${then}`;
}

// The head of a report of one resource: lines with a label and a text.

export type Fact = readonly [label: string, text: string];

/** Names of the fields of a message. */
type FieldOf<Desc extends DescMessage> = Exclude<keyof MessageShape<Desc>, '$typeName' | '$unknown'>;

/**
 * Returns the fields of a message that are set, each under its name, except those that the report shows otherwise or
 * leaves out. So a new field appears by itself.
 */
export function otherFacts<Desc extends DescMessage>(
  schema: Desc,
  message: MessageShape<Desc>,
  except: ReadonlySet<FieldOf<Desc>>,
): Fact[] {
  const json = toJson(schema, message) as Readonly<Record<string, unknown>>;
  return schema.fields
    .filter(({ localName }) => !except.has(localName as FieldOf<Desc>))
    .flatMap(({ name, jsonName }) => {
      const value = json[jsonName];
      const text = value === undefined || typeof value === 'string' ? value : JSON.stringify(value);
      return text === undefined ? [] : [[name.replace(/_json$/, '').replaceAll('_', ' '), text] as const];
    });
}

const LABEL_COLUMNS = 12;

/** Draws a line for each fact whose text is not empty. */
function factLines(
  facts: readonly Fact[],
  { columns, paint }: { readonly columns: number; readonly paint: Paint },
): string[] {
  return facts.flatMap(([label, text]) => {
    if (text === '') return [];
    const head = `${label} `.padEnd(LABEL_COLUMNS);
    return [`  ${paint.dim(head)}${cut(printable(text), columns - head.length - 2)}`];
  });
}

/** `model=reflex, difficulty=easy` */
function labelsText(labels: Readonly<Record<string, string>>): string {
  return Object.entries(labels)
    .map(([key, value]) => `${key}=${value}`)
    .join(', ');
}

const PATH_MOST_COLUMNS = 32;
const MOST_LINES = 24;
const OWN = ' *';

/**
 * Returns the lines of the effective config, then the paths that the run removed. A star marks values from the run's
 * own config.
 */
export function configLines({ configJson, configOverridesJson, removedConfigPaths }: Run, columns: number): string[] {
  const own = new Set(leavesOf(configOverridesJson).map(({ path }) => path));
  const leaves = leavesOf(configJson);
  const shown = leaves.slice(0, MOST_LINES).map(({ path, value }) => ({
    path: printable(path),
    value: printable(value) + (own.has(path) ? OWN : ''),
  }));
  const widest = shown.reduce((width, { path }) => Math.max(width, widthOf(path)), 0);
  const pathColumns = Math.min(widest, PATH_MOST_COLUMNS);
  const lines = shown.map(({ path, value }) => `${fill(path, pathColumns)}  ${cut(value, columns - pathColumns - 2)}`);
  const more = leaves.length - shown.length;
  if (more > 0) lines.push(`… ${more} more; --json shows all`);
  if (removedConfigPaths.length > 0) lines.push(cut(`removed: ${printable(removedConfigPaths.join(', '))}`, columns));
  return lines;
}

interface Leaf {
  /** `optimizer.lr` */
  readonly path: string;
  /** JSON text. Numbers are shown as they were written, without rounding. */
  readonly value: string;
}

/** Functions of Node's JSON that TypeScript's library does not declare yet. */
const exact = JSON as unknown as {
  parse(text: string, reviver: (key: string, value: unknown, context: { source?: string }) => unknown): unknown;
  rawJSON(text: string): unknown;
  isRawJSON(value: unknown): boolean;
};

/** Returns the leaves of a JSON object. Arrays and empty objects are leaves. */
function leavesOf(json: string): Leaf[] {
  if (json === '') return [];
  const config = exact.parse(json, (_, value, { source }) =>
    typeof value === 'number' && source !== undefined ? exact.rawJSON(source) : value,
  );
  return isBranch(config) ? entriesOf(config, '') : [];
}

function entriesOf(branch: Readonly<Record<string, unknown>>, above: string): Leaf[] {
  return Object.entries(branch).flatMap(([key, value]) =>
    isBranch(value) ? entriesOf(value, `${above}${key}.`) : [{ path: above + key, value: JSON.stringify(value) }],
  );
}

function isBranch(value: unknown): value is Readonly<Record<string, unknown>> {
  const object = typeof value === 'object' && value !== null && !Array.isArray(value) && !exact.isRawJSON(value);
  return object && Object.keys(value).length > 0;
}
