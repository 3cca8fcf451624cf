import { create, toBinary } from '@bufbuild/protobuf';
import {
  ListRunsRequestSchema,
  type ListRunsResponse,
  ListRunsResponseSchema,
  type RunService,
  type RunWithProgress,
  RunWithProgressSchema,
  type WatchRunsResponse,
  WatchRunsResponseSchema,
} from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { LookSchedule } from '../../stream/look_schedule.ts';
import type { ServerStream } from '../method.ts';
import { listRuns } from './list.ts';

/** Watches a page of ListRuns (M5). Each hint and poll reads the page again, so no hint needs to be reliable. */
export const watchRuns: ServerStream<typeof RunService.method.watchRuns> = {
  async *messages({ list: request = create(ListRunsRequestSchema) }, call) {
    const { app, signal } = call;
    const schedule = new LookSchedule(app.settings);
    // Subscribes before it reads the page, so that changes during the read cause another look.
    schedule.listen((listener) => app.changes.subscribeAll(listener), app.drain, signal);
    const known = new KnownPage();
    try {
      while (!signal.aborted) {
        app.drain.throwIfBegun();
        schedule.beginLook();
        const news = known.news(create(ListRunsResponseSchema, await listRuns(request, call)));
        if (news !== undefined || schedule.progressDue) {
          schedule.sent();
          yield news ?? create(WatchRunsResponseSchema, { caughtUp: true });
        }
        await schedule.nextLook();
      }
    } finally {
      schedule.stop();
    }
  },
};

/** What the watcher has received. */
class KnownPage {
  /** Encoded runs by id, in order. Undefined before the first look. */
  #runs: ReadonlyMap<string, string> | undefined;

  /** Returns what changed; undefined if nothing did. */
  news({ runs }: ListRunsResponse): WatchRunsResponse | undefined {
    const now = new Map(runs.map((each) => [idOf(each), textOf(each)]));
    const before = this.#runs;
    this.#runs = now;
    const changed = runs.filter((each) => before?.get(idOf(each)) !== now.get(idOf(each)));
    const runIds = [...now.keys()];
    const isSamePage = before !== undefined && [...before.keys()].join() === runIds.join();
    if (isSamePage && changed.length === 0) return undefined;
    const page = isSamePage ? {} : { page: { runIds } };
    return create(WatchRunsResponseSchema, { runs: changed, ...page, caughtUp: true });
  }
}

function idOf({ run }: RunWithProgress): string {
  return run?.id ?? '';
}

function textOf(run: RunWithProgress): string {
  return Buffer.from(toBinary(RunWithProgressSchema, run)).toString('latin1');
}
