import { CATALOGUE_RPCS } from './catalogue.ts';
import { ENVIRONMENT_RPCS } from './environments.ts';
import {
  type CatalogueScene,
  type EnvironmentScene,
  type LiveScene,
  makeCatalogueScene,
  makeEnvironmentScene,
  makeLiveScene,
} from './rollout_scene.ts';
import { LIVE_RPCS } from './rollouts.ts';
import { RUN_LIFE_RPCS } from './run_lives.ts';
import { type LifeScene, makeLifeScene, makeStageScene, type StageScene } from './run_scene.ts';
import { RUN_MAKING_RPCS } from './runs.ts';
import type { RpcClient } from './scene.ts';
import { STAGE_RPCS } from './stages.ts';

export type SmallScene = CatalogueScene | EnvironmentScene | LiveScene | LifeScene | StageScene;

/** Methods whose requests need less than the whole scene of their service, and what makes that. */
const SMALL_SCENES: readonly (readonly [
  object,
  (client: Omit<RpcClient, 'retention' | 'admin'>) => Promise<SmallScene>,
])[] = [
  [CATALOGUE_RPCS, makeCatalogueScene],
  [ENVIRONMENT_RPCS, makeEnvironmentScene],
  [LIVE_RPCS, makeLiveScene],
  [RUN_LIFE_RPCS, makeLifeScene],
  [RUN_MAKING_RPCS, makeLifeScene],
  [STAGE_RPCS, makeStageScene],
];

/** Returns what makes the scene that the requests of a method need, unless they need the whole one of its service. */
export function smallSceneOf(method: string): (typeof SMALL_SCENES)[number][1] | undefined {
  return SMALL_SCENES.find(([cases]) => method in cases)?.[1];
}
