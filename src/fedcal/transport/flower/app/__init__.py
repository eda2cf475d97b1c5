"""The app that `fedcal federate` runs; copied into the run's folder, for Flower bundles an app from its own folder."""
