import { Command, Option } from 'commander';
import { type SearchHit, SearchHitSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, type SearchOptions, searchSteps } from '../client/index.ts';
import { counted, messageJson, type Paint, paintFor, printable } from './columns.ts';
import { type CliContext, CliError, UsageError } from './context.ts';
import { findExperiment, findRun, parseStepReference, parseWhole } from './references.ts';
import { addServerOptions, FIRST_ANSWER, type ServerFlags, withServerOnExisting, write } from './server_access.ts';

interface SearchFlags extends ServerFlags {
  readonly trajectory?: string;
  readonly tree?: string;
  readonly run?: string;
  readonly experiment?: string;
  readonly task?: string;
  readonly limit: string;
  readonly json?: true;
}

const EXAMPLES = `
Examples:
  anabranch search 'connection refused'           the newest trajectories first
  anabranch search timeout --run main             only the trajectories of a run
  anabranch search timeout --tree ID --limit 5000
  anabranch search timeout --json | jq -r '.trajectoryId + "@" + .stepNumber'

Capitals match small letters. States and bytes are not searched. Each line begins with TRAJECTORY@STEP, which
\`steps\` and \`tail\` accept.`;

const MOST = 1_000_000n;
const MOST_TEXT_BYTES = 256;
const CLEAR_LINE = '\r\u001b[K';

/** Creates the command that finds a text in steps. */
export function searchCommand(cli: CliContext): Command {
  const command = new Command('search')
    .description('Find a text in the actions, observations, infos, metadata and labels of steps.')
    .argument('<TEXT>', 'the text, 1 to 256 bytes')
    .addOption(
      new Option('--trajectory <ID>', 'only in this trajectory, inherited steps included').conflicts([
        'tree',
        'run',
        'experiment',
        'task',
      ]),
    )
    .addOption(
      new Option('--tree <ID>', 'only in the tree of this trajectory').conflicts(['run', 'experiment', 'task']),
    )
    .addOption(new Option('--run <RUN>', 'only in the trajectories of this run, by name or id').conflicts('task'))
    .addOption(
      new Option(
        '-e, --experiment <NAME>',
        'only in this experiment, by name or id; with --run: the experiment of the run',
      ).conflicts('task'),
    )
    .option('--task <ID>', 'only in the trajectories of this task')
    .option('-n, --limit <N>', 'end after this many matches', '1000')
    .option('--json', 'print matches as JSON, one per line');
  return addServerOptions(command)
    .addHelpText('after', EXAMPLES)
    .action((text: string, flags: SearchFlags) => search(cli, text, flags));
}

async function search(cli: CliContext, text: string, flags: SearchFlags): Promise<void> {
  const bytes = Buffer.byteLength(text);
  if (bytes < 1 || bytes > MOST_TEXT_BYTES) {
    throw new UsageError(`TEXT has ${bytes} bytes: expected 1 to ${MOST_TEXT_BYTES}.`);
  }
  const maxHits = Number(parseWhole('--limit', flags.limit, 1n, MOST));
  const named = scopeOf(flags);
  await withServerOnExisting(cli, flags, async ({ client }) => {
    // A search waits for an unreachable server. A mistyped address must fail at once.
    await client.server.getServerInfo({}, FIRST_ANSWER);
    const scope = { ...named, ...(await scopeOfRuns(cli, client, flags)) };
    const progress = new SearchedSteps(cli);
    let found = 0;
    try {
      const onProgress = ({ searchedSteps }: { readonly searchedSteps: bigint }) => progress.show(searchedSteps, found);
      for await (const hit of searchSteps(client, { ...scope, text, maxHits, signal: cli.signal, onProgress })) {
        found += 1;
        progress.clear();
        await write(cli.stdout, `${flags.json ? messageJson(SearchHitSchema, hit) : lineOf(cli, hit)}\n`);
      }
    } catch (error) {
      progress.clear();
      if (cli.signal.aborted) throw new CliError('Interrupted.', { cause: error });
      throw error;
    }
    progress.clear();
    const more = found >= maxHits ? ' --limit N continues the search.' : '';
    await write(cli.stderr, `${progress.text(found)}.${more}\n`);
  });
}

type Scope = Pick<SearchOptions, 'trajectoryId' | 'treeId' | 'runId' | 'experimentId' | 'taskId'>;

function scopeOf({ trajectory, tree, task }: SearchFlags): Scope {
  if (trajectory !== undefined) return { trajectoryId: parseStepReference(trajectory).trajectoryId };
  if (tree !== undefined) return { treeId: parseStepReference(tree).trajectoryId };
  return task === undefined ? {} : { taskId: task };
}

async function scopeOfRuns(cli: CliContext, client: AnabranchClient, { run, experiment }: SearchFlags): Promise<Scope> {
  if (run !== undefined) return { runId: (await findRun(cli, client, { argument: run, experiment })).id };
  return experiment === undefined ? {} : { experimentId: (await findExperiment(client, experiment)).id };
}

/** `ID@12 observations[0].content.text: … before MATCH after`. The whole line, also if the terminal is narrower. */
function lineOf({ stdout, env }: CliContext, hit: SearchHit): string {
  const paint: Paint = paintFor(stdout, env);
  const place = paint.dim(`${hit.trajectoryId}@`) + paint.bold(String(hit.stepNumber));
  const excerpt = printable(hit.before) + paint.inverse(printable(hit.match)) + printable(hit.after);
  return `${place} ${paint.cyan(printable(hit.field))}: ${excerpt}`;
}

/** Shows on a terminal how many steps were searched so far, in one line that the next match replaces. */
class SearchedSteps {
  readonly #cli: CliContext;
  #searched = 0n;
  #shown = false;

  constructor(cli: CliContext) {
    this.#cli = cli;
  }

  show(searched: bigint, found: number): void {
    this.#searched = searched;
    const { stderr, env } = this.#cli;
    if (stderr.isTTY !== true || env.TERM === 'dumb') return;
    stderr.write(`${CLEAR_LINE}${this.text(found)} …`);
    this.#shown = true;
  }

  clear(): void {
    if (this.#shown) this.#cli.stderr.write(CLEAR_LINE);
    this.#shown = false;
  }

  /** `2 matches in 5310 steps` */
  text(found: number): string {
    return `${counted(found, 'match')} in ${counted(this.#searched, 'step')}`;
  }
}
