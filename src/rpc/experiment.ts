import { create } from '@bufbuild/protobuf';
import type { ServiceImpl } from '@connectrpc/connect';
import {
  CreateExperimentResponseSchema,
  DeleteExperimentResponseSchema,
  GetExperimentResponseSchema,
  ListExperimentsResponseSchema,
  RunService,
  UpdateExperimentResponseSchema,
} from '../../gen/es/anabranch/v1/run_service_pb.js';
import { deleteExperiment } from '../app/run/delete.ts';
import { createExperiment, getExperiment, listExperiments, updateExperiment } from '../app/run/experiment.ts';
import { toView } from '../service/convert/values.ts';
import { idempotencyKeyOf } from '../service/request/digest.ts';
import { pageArgsOf } from '../service/request/page_args.ts';
import { unary, type Wire } from './call.ts';
import { toBranchPolicy, toExperimentChanges } from './convert/run_in.ts';
import { fromExperiment } from './convert/run_out.ts';

const rpc = RunService.method;

export function experimentMethods(
  wire: Wire,
): Pick<
  ServiceImpl<typeof RunService>,
  'createExperiment' | 'getExperiment' | 'listExperiments' | 'updateExperiment' | 'deleteExperiment'
> {
  return {
    createExperiment: unary(wire, rpc.createExperiment, 'write', async (request, { app, caller }) => {
      const key = idempotencyKeyOf(rpc.createExperiment, request);
      const { maxSteps, seed, requestId: _, $typeName: __, $unknown: ___, ...fields } = request;
      const made = await createExperiment(app, caller, { ...fields, maxSteps, seed, key });
      return create(CreateExperimentResponseSchema, { experiment: fromExperiment(made, 'FULL') });
    }),

    getExperiment: unary(wire, rpc.getExperiment, 'read', async ({ experimentId, name, view }, { app, caller }) => {
      const which = experimentId === undefined ? { name: name ?? '' } : { id: experimentId };
      const found = await getExperiment(app, caller, which);
      return create(GetExperimentResponseSchema, { experiment: fromExperiment(found, toView(view, 'FULL')) });
    }),

    listExperiments: unary(wire, rpc.listExperiments, 'read', async (request, { app, caller }) => {
      const { environmentName, agentType, tags } = request;
      const view = toView(request.view, 'BASIC');
      const filter = {
        ...(environmentName === '' ? {} : { environmentName }),
        ...(agentType === '' ? {} : { agentType }),
        ...(tags.length === 0 ? {} : { tags }),
      };
      const page = await listExperiments(app, caller, {
        filter,
        view,
        ...pageArgsOf(caller, rpc.listExperiments, request),
      });
      return create(ListExperimentsResponseSchema, {
        experiments: page.items.map((item) => fromExperiment(item, view)),
        nextPageToken: page.nextPageToken,
      });
    }),

    updateExperiment: unary(wire, rpc.updateExperiment, 'write', async (request, { app, caller }) => {
      const args = { experimentId: request.experimentId, changes: toExperimentChanges(request) };
      const now = await updateExperiment(app, caller, args);
      return create(UpdateExperimentResponseSchema, { experiment: fromExperiment(now, 'FULL') });
    }),

    deleteExperiment: unary(
      wire,
      rpc.deleteExperiment,
      'write',
      async ({ experimentId, onBranches, cancelLive }, { app, caller }) => {
        const args = { experimentId, onBranches: toBranchPolicy(onBranches), cancelLive };
        const { runs, trajectories } = await deleteExperiment(app, caller, args);
        return create(DeleteExperimentResponseSchema, { deletedRuns: runs, deletedTrajectories: trajectories });
      },
    ),
  };
}
