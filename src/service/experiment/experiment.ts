import { ExperimentSchema, type Experiment as WireExperiment } from '../../../gen/es/anabranch/v1/run_pb.js';
import { RunService, UpdateExperimentRequestSchema } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { IfExists } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { requireConfig } from '../../domain/json.ts';
import type { Experiment } from '../../domain/run.ts';
import type { View } from '../../store/contract/request.ts';
import { findExperiment } from '../../stream/find.ts';
import { messageOf, sizerOf } from '../answer/message.ts';
import { pageOf } from '../answer/page.ts';
import { maskedFields } from '../convert/mask.ts';
import { fromInstant, setFilters, toBranchPolicy, toView } from '../convert/values.ts';
import type { SomeMethods } from '../method.ts';
import { idempotencyKeyOf } from '../request/digest.ts';
import { pageArgsOf } from '../request/page_token.ts';
import { requireNewName } from '../run/requests.ts';
import { forgetDeleted } from '../run/run.ts';

const rpc = RunService.method;
const experimentBytes = sizerOf(ExperimentSchema);

export const experimentMethods = {
  async createExperiment(request, { app, caller }) {
    const { experimentId, maxSteps, seed, ifExists, requestId: _, $typeName: __, $unknown: ___, ...fields } = request;
    requireConfig(fields.defaultConfigJson, 'default_config_json');
    const returnExisting = ifExists === IfExists.RETURN_EXISTING;
    const newExperiment = { ...fields, maxSteps, seed, id: experimentId || app.ids.uuid(), returnExisting };
    const key = idempotencyKeyOf(rpc.createExperiment, request);
    const created = await app.store.createExperiment(caller, newExperiment, key);
    return { experiment: toMessage(created, 'FULL') };
  },

  async getExperiment({ experimentId, name = '', view }, { app, caller }) {
    const reference = experimentId === undefined ? { name } : { id: experimentId };
    const found = await findExperiment(app, caller, reference);
    return { experiment: toMessage(found, toView(view, 'FULL')) };
  },

  /** Lists the newest first. */
  async listExperiments(request, { app, caller }) {
    const { environmentName, agentType, tags } = request;
    const view = toView(request.view, 'BASIC');
    const filter = setFilters({ environmentName, agentType, tags });
    const page = await pageOf(pageArgsOf({ app, caller }, rpc.listExperiments, request), {
      view,
      fetch: (rows) => app.store.listExperiments(caller.namespace, filter, rows, view),
      keyOf: ({ key }) => key,
      show: (row) => toMessage(row, view),
      bytesOf: experimentBytes,
    });
    return { experiments: page.items, nextPageToken: page.nextPageToken };
  },

  async updateExperiment(request, { app, caller }) {
    const changes = maskedFields(UpdateExperimentRequestSchema, request, {});
    requireNewName(changes);
    requireConfig(changes.defaultConfigJson ?? '', 'default_config_json');
    const now = await app.store.updateExperiment(caller.namespace, request.experimentId, changes);
    return { experiment: toMessage(now, 'FULL') };
  },

  async deleteExperiment({ experimentId, onBranches, cancelLive }, { app, caller }) {
    const policy = toBranchPolicy(onBranches);
    return forgetDeleted(app, await app.store.deleteExperiment(caller.namespace, experimentId, policy, cancelLive));
  },
} satisfies SomeMethods<typeof RunService>;

/** BASIC omits fields with JSON (FM7). */
function toMessage(experiment: Experiment, view: View): WireExperiment {
  const { key: _, tags, ...fields } = experiment;
  const json = (text: string) => (view === 'FULL' ? text : '');
  return messageOf(ExperimentSchema, {
    ...fields,
    environmentConfigJson: json(experiment.environmentConfigJson),
    agentConfigJson: json(experiment.agentConfigJson),
    defaultConfigJson: json(experiment.defaultConfigJson),
    tags: [...tags],
    metadataJson: json(experiment.metadataJson),
    createTime: fromInstant(experiment.createTime),
    updateTime: fromInstant(experiment.updateTime),
  });
}
