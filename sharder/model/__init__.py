"""pi0 as pure functions of weights and arrays. Model code knows shapes, never devices or processes."""
