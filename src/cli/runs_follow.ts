import { create, type MessageInitShape } from '@bufbuild/protobuf';
import {
  type ListRunsRequestSchema,
  type RunWithProgress,
  WatchRunsResponseSchema,
} from '../../gen/es/anabranch/v1/run_service_pb.js';
import { type AnabranchClient, type RunsPicture, watchRuns } from '../client/index.ts';
import { printable } from './columns.ts';
import type { CliContext } from './context.ts';
import { type Forms, follow } from './follow.ts';
import { messageJson } from './json_text.ts';
import { FIRST_ANSWER } from './server_access.ts';
import { progressText, runText } from './watch_text.ts';

interface RunsView {
  /** The runs to show, as ListRuns takes them. */
  readonly list: MessageInitShape<typeof ListRunsRequestSchema>;
  readonly json: boolean;
}

/** Shows a list of runs while it changes. */
export async function followRuns(
  cli: CliContext,
  client: AnabranchClient,
  { list, json }: RunsView,
  table: (runs: readonly RunWithProgress[]) => readonly string[],
): Promise<void> {
  const forms: Forms<RunsPicture> = {
    json: ({ runs, changed }) => {
      if (changed.runs.length === 0 && !changed.page) return undefined;
      const page = changed.page ? { page: { runIds: runs.flatMap(({ run }) => run?.id ?? []) } } : {};
      const message = create(WatchRunsResponseSchema, { runs: [...changed.runs], ...page, caughtUp: true });
      return messageJson(WatchRunsResponseSchema, message);
    },
    changes: ({ changed }) => changed.runs.map(changeOf),
    screen: ({ runs }) => table(runs),
  };
  // A watch waits for an unreachable server. A wrong address must fail at once.
  await client.server.getServerInfo({}, FIRST_ANSWER);
  await follow(cli, json, (onCut) => watchRuns(client, { list, signal: cli.signal, onCut }), forms);
}

/** `ID main: running, training, 58 %` */
function changeOf({ run, progress }: RunWithProgress): readonly [string, string] {
  if (run === undefined) return ['', ''];
  const done = progress === undefined ? '' : progressText(progress);
  return [run.id, `${run.id} ${printable(run.name)}: ${[runText(run), done].filter((text) => text !== '').join(', ')}`];
}
