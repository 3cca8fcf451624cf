import type { MessageInitShape } from '@bufbuild/protobuf';
import { RunSchema } from '../../../gen/es/anabranch/v1/run_pb.js';
import {
  type ListRunsRequest,
  type ListRunsResponseSchema,
  RunService,
} from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { ANSWER_BYTES } from '../../domain/limits.ts';
import { sortValue } from '../../domain/list_order.ts';
import type { Run } from '../../domain/run.ts';
import { countFitting, sizerOf } from '../answer/message.ts';
import { pageByKey } from '../answer/page.ts';
import { toView } from '../convert/values.ts';
import type { Call } from '../method.ts';
import { pageArgsOf, readListKey, toListSort, writeListKey } from '../request/page_token.ts';
import { fromRun, progressBytes, progressesOf } from './messages.ts';
import { toRunFilter } from './requests.ts';

const runBytes = sizerOf(RunSchema);

/** Lists runs with their progress. A page has only runs that fit with their progress (RD3). */
export async function listRuns(
  request: ListRunsRequest,
  { app, caller }: Pick<Call, 'app' | 'caller'>,
): Promise<MessageInitShape<typeof ListRunsResponseSchema>> {
  const view = toView(request.view, 'BASIC');
  const filter = toRunFilter(request);
  const args = pageArgsOf({ app, caller }, RunService.method.listRuns, request);
  const sort = toListSort(request);
  const cursorOf = (row: Run) => ({
    key: row.key,
    value: sort && sortValue(sort, { ...row, reward: row.mainTrajectory?.rewardSum }),
  });
  const page = await pageByKey(args, {
    view,
    fetch: ({ limit, after }) =>
      app.store.listRuns(caller.namespace, filter, { limit, sort, after: after?.key, value: after?.value }, view),
    keyOf: cursorOf,
    readKey: (cursor) => readListKey(sort, cursor),
    writeKey: writeListKey,
    show: (row) => ({ row, run: fromRun(row, view) }),
    bytesOf: ({ run }) => runBytes(run),
  });
  const rows = page.items.map(({ row }) => row);
  const progresses = await progressesOf(app, caller, rows);
  const runs = page.items.map(({ run }, i) => ({ run, progress: progresses[i]! }));
  const bytesOf = ({ run, progress }: (typeof runs)[number]) => runBytes(run) + progressBytes(progress);
  const count = Math.max(1, countFitting(runs, bytesOf, ANSWER_BYTES));
  if (count >= runs.length) return { runs, nextPageToken: page.nextPageToken };
  return {
    runs: runs.slice(0, count),
    nextPageToken: await args.tokens.seal(writeListKey(cursorOf(rows[count - 1]!))),
  };
}
