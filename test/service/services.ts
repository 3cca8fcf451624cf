import {
  create,
  type DescMethodUnary,
  type DescService,
  type MessageInitShape,
  type MessageShape,
} from '@bufbuild/protobuf';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Caller } from '../../src/domain/caller.ts';
import { experimentMethods } from '../../src/service/experiment/experiment.ts';
import { groupMethods } from '../../src/service/group/group.ts';
import type { Methods, Unary } from '../../src/service/method.ts';
import { rolloutMethods } from '../../src/service/rollout/rollout.ts';
import { runMethods } from '../../src/service/run/run.ts';
import { summaryMethods } from '../../src/service/run/summary.ts';
import { runVerbs } from '../../src/service/run/verbs.ts';
import { branchTrajectories } from '../../src/service/trajectory/branches.ts';
import { compareBranches } from '../../src/service/trajectory/comparison.ts';
import { stepMethods } from '../../src/service/trajectory/step.ts';
import { tagMethods, trajectoryMethods } from '../../src/service/trajectory/trajectory.ts';
import type { App } from '../../src/stream/app.ts';
import { callOf } from '../support/parts_call.ts';

/** Methods of a service as functions of what a request is made of, without the wire and its checks. */
type Asked<S extends DescService, Names extends keyof S['method']> = {
  readonly [N in Names]: S['method'][N] extends DescMethodUnary
    ? (request: MessageInitShape<S['method'][N]['input']>) => Promise<MessageShape<S['method'][N]['output']>>
    : never;
};

export function servicesOf(app: App, caller: Caller) {
  const call = callOf(app, caller);
  const bound = <S extends DescService, Names extends keyof S['method']>(service: S, methods: Methods<S, Names>) => {
    const asked = Object.entries(methods as Readonly<Record<string, Unary<DescMethodUnary>>>).map(([name, method]) => {
      const { input, output } = service.method[name] as DescMethodUnary;
      return [
        name,
        async (request: MessageInitShape<typeof input>) => create(output, await method(create(input, request), call)),
      ];
    });
    return Object.fromEntries(asked) as Asked<S, Names>;
  };
  return {
    ...bound(TrajectoryService, {
      ...trajectoryMethods,
      ...stepMethods,
      ...tagMethods,
      compareBranches,
      branchTrajectories,
    }),
    ...bound(RunService, { ...experimentMethods, ...runMethods, ...runVerbs, ...summaryMethods }),
    ...bound(RolloutService, { ...groupMethods, ...rolloutMethods }),
  };
}

/** All items of a list, page by page. */
export async function collect<Item>(
  fetch: (page: { readonly pageSize: number; readonly pageToken: string }) => Promise<readonly [Item[], string]>,
  pageSize: number,
): Promise<Item[]> {
  const items: Item[] = [];
  let pageToken = '';
  do {
    const [page, next] = await fetch({ pageSize, pageToken });
    if (page.length === 0 && next !== '') throw new Error('an empty page that is not the last');
    items.push(...page);
    pageToken = next;
  } while (pageToken !== '');
  return items;
}
