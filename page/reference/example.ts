import { type DescField, type DescMessage, type DescOneof, ScalarType } from '@bufbuild/protobuf';

/** Examples of requests, as JSON. Tests check them against the rules of the protos. */

type Json = string | number | boolean | Json[] | { [key: string]: Json };

const ID = '0199f3a2-7c11-7d2e-8a4b-0123456789ab';
/** Messages below this depth are left out. */
const DEPTH = 3;

/** Texts by the ends of the fields' names. */
const TEXTS: readonly (readonly [RegExp, string])[] = [
  [/(^|_)u?ids?$/, ID],
  [/(^|_)digests?$/, 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad'],
  [/_json$/, '{"x": 0.5}'],
  [/^json$/, '{"x": 0.5}'],
  [/pointer$/, '/x'],
  [/media_type$/, 'application/json'],
  [/_uri$|^uri$/, 'https://models.example/policy-7'],
  [/metric|key/, 'reward'],
  [/prefix/, 'run'],
  [/status/, 'running'],
];

const SCALARS: Readonly<Partial<Record<ScalarType, Json>>> = {
  [ScalarType.BOOL]: true,
  [ScalarType.BYTES]: 'eyJ4IjogMC41fQ==',
  [ScalarType.DOUBLE]: 0.5,
  [ScalarType.FLOAT]: 0.5,
  // JSON has 64-bit integers as strings.
  [ScalarType.INT64]: '7',
  [ScalarType.UINT64]: '7',
};

const WELL_KNOWN: Readonly<Record<string, Json>> = {
  'google.protobuf.Timestamp': '2026-01-31T12:00:00Z',
  'google.protobuf.Duration': '30s',
  'google.protobuf.FieldMask': 'name',
};

/** Fields that exclude the one that is shown, by the names of messages or of RPCs. */
const LEFT_OUT: Readonly<Record<string, readonly string[]>> = {
  Action: ['token_ids_state', 'prompt_token_ids_state'],
  AppendSteps: ['branch'],
  BranchRun: ['tag'],
  BranchTrajectory: ['tag'],
  Content: ['json', 'data', 'state_digest', 'uri', 'tensor'],
  TrajectoryCreation: ['branch'],
  GetCheckpoint: ['step_number', 'tag'],
  GetExperiment: ['name'],
  GetGroup: ['stage_id', 'number'],
  GetRun: ['run_name', 'experiment_id'],
  GetRunTree: ['experiment_id'],
  GetStage: ['run_id', 'kind', 'name', 'number'],
  GetState: ['digest'],
  GetStep: ['tag'],
  GetStorageUsage: ['run_id'],
  ExportArchive: ['trajectory_id'],
  ListRollouts: ['stage_id', 'group_id'],
  ListStatusChanges: ['stage_id', 'trajectory_id', 'rollout_id', 'environment_id'],
  ListSteps: ['task_id', 'run_id', 'experiment_id'],
  ReadRollouts: ['stage_id'],
  ReadStates: ['references', 'digests', 'steps'],
  ReadStepSeries: ['tree_id', 'metric_key', 'pointer', 'state_name'],
  RetentionPolicy: ['trajectories', 'experiment_id'],
  SearchSteps: ['tree_id', 'run_id', 'experiment_id', 'task_id'],
  WatchSubject: ['runs', 'tree', 'trajectories'],
};

/** Values that follow from no name or type. */
const VALUES: Readonly<Record<string, Readonly<Record<string, Json>>>> = {
  CompareRuns: { run_ids: [ID, '0199f3a2-7c11-7d2e-8a4b-ba9876543210'] },
  ReadStepSeries: { value: 'STEP_VALUE_REWARD_SUM', steps: 'STEP_SCOPE_OWN', max_points: 1000 },
  Seal: { status: 'STATUS_COMPLETED' },
  SetRetentionPolicy: { interval: '3600s' },
  TrajectoryShard: { index: 0, count: 4 },
};

/**
 * Returns an example with the fields that a first call needs: of each oneof the first member, and nothing that
 * continues an earlier call.
 */
export function exampleOf(message: DescMessage, depth = 0): { [key: string]: Json } {
  const found: { [key: string]: Json } = {};
  const name = message.name.replace(/Request$/, '');
  for (const member of message.members) {
    const field = firstField(member);
    if (field === undefined || /page_token|resume_token|continue_token|^cursor$/.test(field.name)) continue;
    if (LEFT_OUT[name]?.includes(field.name)) continue;
    const value = VALUES[name]?.[field.name] ?? exampleValue(field, depth);
    if (value !== undefined) found[field.jsonName] = value;
  }
  return found;
}

function firstField(member: DescField | DescOneof): DescField | undefined {
  return member.kind === 'oneof' ? member.fields[0] : member;
}

function exampleValue(field: DescField, depth: number): Json | undefined {
  const element = elementOf(field, depth);
  if (element === undefined) return undefined;
  if (field.fieldKind === 'list') return [element];
  return field.fieldKind === 'map' ? { key: element } : element;
}

function elementOf(field: DescField, depth: number): Json | undefined {
  const { message, enum: values, scalar } = field;
  if (message !== undefined)
    return WELL_KNOWN[message.typeName] ?? (depth < DEPTH ? exampleOf(message, depth + 1) : undefined);
  if (values !== undefined) return values.values[1]?.name;
  if (scalar === ScalarType.STRING) return TEXTS.find(([name]) => name.test(field.name))?.[1] ?? 'first';
  return SCALARS[scalar ?? ScalarType.INT32] ?? 7;
}
