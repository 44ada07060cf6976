from ds_minimodel.cli import main

if __name__ == "__main__":
    main()
