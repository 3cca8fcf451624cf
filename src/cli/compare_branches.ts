import { toJsonString } from '@bufbuild/protobuf';
import { Command, Option } from 'commander';
import {
  BranchMeasure,
  type BranchPair,
  type CompareBranchesResponse,
  CompareBranchesResponseSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { columnsOf, cut, fill, paintFor, printable, shortNumber } from './columns.ts';
import { type CliContext, CliError } from './context.ts';
import {
  addServerOptions,
  DEFAULT_ADDRESS,
  JSON_FORM,
  type ServerFlags,
  withServerOnExisting,
  write,
} from './server_access.ts';
import { parseStepReference, parseWhole } from './step_reference.ts';

interface CompareFlags extends ServerFlags {
  readonly measure: string;
  readonly confidence?: string;
  readonly seed: string;
  readonly json?: true;
}

const EXAMPLES = `
Examples:
  anabranch compare-branches ID lr 0.01 0.1                 the reward sums of branches with lr=0.1 and lr=0.01
  anabranch compare-branches ID lr 0.01 0.1 --measure steps
  anabranch compare-branches ID lr 0.01 0.1 --json | jq .meanDifference

Branches are compared in pairs that have the same parent and branch point; several branches of one value at a point are
averaged first. The interval of the mean is from 10,000 bootstrap resamples, the p-value from the two-sided sign test.`;

const MEASURES: Readonly<Record<string, BranchMeasure>> = {
  'reward-sum': BranchMeasure.REWARD_SUM,
  'reward-mean': BranchMeasure.REWARD_MEAN,
  steps: BranchMeasure.STEPS,
};

const DEFAULT_CONFIDENCE = 0.95;

/** Creates the command that compares branches of a tree by a label. */
export function compareBranchesCommand(cli: CliContext): Command {
  const command = new Command('compare-branches')
    .description('Compare the branches of a tree by a label, in pairs: mean difference, interval and sign test.')
    .argument('<TRAJECTORY>', 'id of any trajectory of the tree')
    .argument('<LABEL>', 'name of the label')
    .argument('<VALUE>', 'value of the label that is compared with')
    .argument('<OTHER>', 'the other value')
    .addOption(
      new Option('--measure <MEASURE>', 'what is compared, of the own steps of a branch')
        .choices(Object.keys(MEASURES))
        .default('reward-sum'),
    )
    .option('--confidence <N>', `confidence level of the interval (default: ${DEFAULT_CONFIDENCE})`)
    .option('--seed <N>', 'seed of the resamples', '0')
    .option('--json', 'print the response as JSON');
  return addServerOptions(command, `address of the server (default: ${DEFAULT_ADDRESS})`)
    .addHelpText('after', EXAMPLES)
    .action((tree: string, label: string, value: string, other: string) =>
      compare(cli, { tree, label, value, other }, command.opts<CompareFlags>()),
    );
}

interface Question {
  readonly tree: string;
  readonly label: string;
  readonly value: string;
  readonly other: string;
}

async function compare(cli: CliContext, question: Question, flags: CompareFlags): Promise<void> {
  const { label, value, other: otherValue } = question;
  const request = {
    treeId: parseStepReference(question.tree).trajectoryId,
    label,
    value,
    otherValue,
    measure: MEASURES[flags.measure] ?? BranchMeasure.UNSPECIFIED,
    confidence: parseConfidence(flags.confidence),
    seed: Number(parseWhole('--seed', flags.seed, 0n, 2n ** 32n - 1n)),
  };
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const answer = await client.trajectories.compareBranches(request, { signal: cli.signal });
    const text = flags.json
      ? toJsonString(CompareBranchesResponseSchema, answer, JSON_FORM)
      : linesOf(cli, question, request.confidence, answer).join('\n');
    await write(cli.stdout, `${text}\n`);
  });
}

function parseConfidence(text: string | undefined): number {
  const level = text === undefined ? DEFAULT_CONFIDENCE : text.trim() === '' ? Number.NaN : Number(text);
  if (level > 0 && level < 1) return level;
  throw new CliError(`--confidence is "${text}": expected a number greater than 0 and less than 1.`, { exitCode: 2 });
}

const MOST_PAIRS = 20;
const ID_COLUMNS = 36;
const POINT_COLUMNS = 10;
const NUMBER_COLUMNS = 10;

function linesOf(
  cli: CliContext,
  { label, value, other }: Question,
  confidence: number,
  { pairs, pairCount, meanDifference, intervalLow, intervalHigh, higher, lower, signTestP }: CompareBranchesResponse,
): string[] {
  const columns = columnsOf(cli);
  const paint = paintFor(cli.stdout, cli.env);
  if (pairCount === 0 || meanDifference === undefined) {
    return ['No two branches with these values have the same parent and branch point.'];
  }
  const [named, otherNamed] = [`${label}=${value}`, `${label}=${other}`].map(printable);
  const shown = pairs.slice(0, MOST_PAIRS);
  const row = (cells: readonly [string, string, string, string, string]) =>
    [cells[0].padEnd(ID_COLUMNS), cells[1].padStart(POINT_COLUMNS), ...cells.slice(2).map(numberCell)].join(' ');
  const interval = `${shortNumber(intervalLow ?? Number.NaN)} to ${shortNumber(intervalHigh ?? Number.NaN)}`;
  return [
    cut(`${otherNamed} minus ${named}: ${pairCount} ${pairCount === 1 ? 'pair' : 'pairs'}`, columns),
    `mean difference ${paint.bold(signed(meanDifference))}, ${shortNumber(confidence * 100)} % interval ${interval}`,
    `higher in ${higher}, lower in ${lower}, sign test p = ${shortNumber(signTestP)}`,
    '',
    paint.dim(row(['parent', 'at step', printable(value), printable(other), 'difference'])),
    ...shown.map((pair) => row(cellsOf(pair))),
    ...(pairCount > shown.length ? [`… ${pairCount - shown.length} more; --json has the first 1000`] : []),
  ];
}

function numberCell(text: string): string {
  return fill(text, NUMBER_COLUMNS).trimEnd().padStart(NUMBER_COLUMNS);
}

function cellsOf({ parentId, branchPoint, value, otherValue, difference }: BranchPair) {
  return [parentId, String(branchPoint), shortNumber(value), shortNumber(otherValue), signed(difference)] as const;
}

function signed(value: number): string {
  return value > 0 ? `+${shortNumber(value)}` : shortNumber(value);
}
